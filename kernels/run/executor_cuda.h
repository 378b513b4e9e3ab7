#pragma once

#include "kernels/dispatch/attention_dispatch.h"
#include "sim/run/executor.h"

#include <memory>
#include <optional>

namespace cpscope::kernels {

/// Executor `cuda`: one GPU takes the part of all ranks. Every rank has its own device buffers
/// between guard bytes; transfers are device copies on a separate stream, computes run on several
/// streams, and an item waits only for the buffers that it touches.
/// `generation`: the newest kernels that may be used; `portable` makes executor `cuda-portable`.
/// CPSCOPE_WITHOUT in the environment names passes of lowering that do not run; absence() rejects
/// other names.
std::unique_ptr<Executor> make_executor_cuda(std::optional<Generation> generation = std::nullopt);

}  // namespace cpscope::kernels
