#pragma once

#include "sim/plan/direction.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

/// One agreement of all ranks on a scale (dtype fp8): the largest absolute value of the tensors,
/// in fp32, reduced over the ranks. Plans have no items for them.
struct ScaleReduction {
  Direction direction = Direction::forward;
  std::vector<std::string_view> tensors;  // that share the scale
  bool is_for_next = false;  // false: before the first step of the pass, which waits for it; true:
                             // after its last step, for the next training step
  int64_t bytes = 0;         // that a rank sends, counted as sent to every other rank
};

/// Those of a pass. recipe current: q, k and v together, and d_out, before the pass; delayed: all
/// tensors that are cast, after it; mxfp8 and other dtypes: none. Source: TransformerEngine's
/// recipes, which reduce over the CP group.
std::vector<ScaleReduction> scale_reductions(const Scenario& scenario, Direction direction);
/// Those of both passes, the forward's first.
std::vector<ScaleReduction> scale_reductions(const Scenario& scenario);

/// "forward, before step 0: the largest of q, k, v over 4 ranks, 12 bytes a rank".
std::string describe(const ScaleReduction& reduction, const Scenario& scenario);

}  // namespace cpscope
