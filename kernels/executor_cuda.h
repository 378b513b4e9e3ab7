#pragma once

#include "kernels/attention_launch.h"
#include "sim/run/executor.h"

#include <memory>
#include <optional>

namespace cpscope::kernels {

/// Executor `cuda`: one GPU plays all ranks. Every rank has its own device buffers between guard
/// bytes; transfers are device copies on a stream of their own, computes run on several streams,
/// and an item waits only for the buffers that it touches.
/// `generation` forces the portable or Hopper's own kernels; else the newest that fit.
std::unique_ptr<Executor> make_executor_cuda(std::optional<Generation> generation = std::nullopt);

}  // namespace cpscope::kernels
