#pragma once

#include "sim/run/executor.h"

#include <memory>

namespace cpscope::reference {

/// Executor `cpu`: every rank has its own memory and data moves only by the plan's transfers. Eigen
/// computes the tiles, in fp64 for dtype fp64 and in fp32 otherwise, with every rounding that the
/// scenario requires. It contains no mask, layout or schedule: these come from the plan.
std::unique_ptr<Executor> make_plan_walker();

}  // namespace cpscope::reference
