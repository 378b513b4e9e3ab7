#pragma once

#include "sim/run/executor.h"
#include "sim/run/item_kernel.h"

#include <memory>
#include <string>

namespace cpscope::reference {

/// The walker with somebody else's kernel for every compute item: transfers, reorders, merges and
/// finishes are the walker's. Items are carried out one after another. What the kernel does not
/// write is NaN; its rows without a visible key are its own to write. A max_logit that it leaves
/// unwritten is computed here.
std::unique_ptr<Executor> make_kernel_walker(std::string name, ItemKernel kernel);

}  // namespace cpscope::reference
