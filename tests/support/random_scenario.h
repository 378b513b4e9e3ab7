#pragma once

#include "sim/scenario/scenario.h"

#include <cstdint>

namespace cpscope::tests {

/// What a random scenario may contain.
struct RandomSpace {
  int64_t max_length = 40;
  int32_t max_ranks = 6;
  bool any_dtype = false;  // else fp64
};

/// A random small scenario over the whole space of communication types, layouts, masks, formats,
/// padding and features. It may be one that a rule refuses. The same seed gives the same scenario
/// on every machine.
Scenario random_scenario(uint64_t seed, const RandomSpace& space = {});

}  // namespace cpscope::tests
