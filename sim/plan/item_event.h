#pragma once

#include "sim/base/ids.h"
#include "sim/plan/plan.h"

#include <cstdint>

namespace cpscope {

/// The identity of an item of a plan: number `index` of its kind in one direction.
struct ItemId {
  Direction direction = Direction::forward;
  StageKind kind = StageKind::compute;
  int64_t index = 0;

  friend bool operator==(const ItemId&, const ItemId&) = default;
};

/// When an item ran, from the start of the run.
struct ItemEvent {
  ItemId item;
  RankId rank{};
  StepId step{};
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  int64_t cast_ns = 0;  // of this time, before the kernels of attention: FP8 rows become codes
};

}  // namespace cpscope
