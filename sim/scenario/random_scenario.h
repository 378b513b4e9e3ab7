#pragma once

#include "sim/scenario/scenario.h"

#include <cstdint>

namespace cpscope {

/// The space of random scenarios.
struct RandomSpace {
  int64_t max_length = 40;
  int32_t max_ranks = 6;
  bool any_dtype = false;  // else fp64
  /// Includes what is rare in small scenarios: many heads and odd head dimensions, long windows and
  /// chunks, logits of several hundred, batches without a token, large slots.
  bool is_wide = false;
  bool moves_queries = false;  // only schedules in which queries move, or a ring has windows
  bool has_fp8 = false;        // only dtype fp8
  bool has_rare = false;       // some with kv_replicated, reduce_scatter, cp_sizes, latent_dim
};

/// A random small scenario over the whole space of communication types, layouts, masks, formats,
/// padding and features; for fuzzing and for property tests. A rule may refuse it. The same seed
/// gives the same scenario on every machine.
Scenario random_scenario(uint64_t seed, const RandomSpace& space = {});

/// Another way to split and move an attention: ranks, communication type, layout, never an imported
/// order. A rule may refuse it.
Parallel random_parallel(uint64_t seed, const RandomSpace& space, const Attention& attention);

}  // namespace cpscope
