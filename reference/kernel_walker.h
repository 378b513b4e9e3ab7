#pragma once

#include "sim/run/executor.h"
#include "sim/run/item_kernel.h"

#include <memory>
#include <string>

namespace cpscope::reference {

/// The walker with an external kernel for every compute item: transfers, reorders, merges and
/// finishes are the walker's. Items run one after another. Rows that the kernel does not write are
/// NaN, so it must also write rows without a visible key. A max_logit that it leaves unwritten is
/// computed here.
std::unique_ptr<Executor> make_kernel_walker(std::string name, ItemKernel kernel);

}  // namespace cpscope::reference
