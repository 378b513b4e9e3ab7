#pragma once

#include "sim/clock/pass_clock.h"
#include "sim/clock/trace_match.h"

#include <cstdint>
#include <vector>

namespace cpscope {

/// A stretch of one rank in one pass and the step it belongs to; -1: none of the plan's.
struct StepStretch {
  TimeStretch time;
  int32_t step = -1;
};

/// What a rank did in one pass of the layer.
struct PassWork {
  std::vector<StepStretch> attention, transfers;
  std::vector<TimeStretch> other;
};

/// The figures of the time from the first begin of an item to the last end of one; what overlaps it
/// counts as far as it does. Nothing without items.
PassFigures figures_of(const PassWork& work);

}  // namespace cpscope
