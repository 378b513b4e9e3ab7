#pragma once

#include "sim/run/executor.h"

#include <memory>

namespace cpscope::reference {

/// Executor `cpu`: every rank has its own memory and data moves only by the plan's transfers; Eigen
/// does the tiles, in fp64 for dtype fp64 and in fp32 otherwise, with every rounding that the
/// scenario asks for. It will never contain a mask, a layout or a schedule: the plan says all that.
std::unique_ptr<Executor> make_plan_walker();

}  // namespace cpscope::reference
