#pragma once

#include "sim/base/result.h"
#include "sim/plan/layout.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <vector>

namespace cpscope {

/// How many keys of each rank one query sees: the local lengths of a decoder, one for each draft.
/// A key counts on the rank that owns it; the copies of kv_replicated do not, here and below.
struct LocalKeys {
  int64_t sequence = 0;
  int64_t query = 0;          // valid queries of the sequence are counted from 0
  std::vector<int64_t> keys;  // [rank]
};

/// For every valid query of the batch, by sequence. Refuses more than kMaxLocalKeys counts.
Result<std::vector<LocalKeys>> count_local_keys(const Scenario& scenario, const Layout& layout);

inline constexpr int64_t kMaxLocalKeys = int64_t{1} << 22;  // queries times ranks

/// One token that a decoder appends to its cache.
struct AppendedKey {
  int64_t step = 1;
  int64_t sequence = 0;
  int64_t position = 0;       // of the token; the sequence then has position + 1 keys
  int32_t rank = 0;           // that stores it
  int64_t row = 0;            // its place among the rank's keys of the sequence
  std::vector<int64_t> keys;  // [rank] of the sequence, after the step
};

/// The next `steps` tokens of every sequence. A cache that grows stays where it is only if its keys
/// are split in stripes, every sequence for itself; refuses other layouts, and sequences that begin
/// within a round of stripes.
Result<std::vector<AppendedKey>> grow_cache(const Scenario& scenario, const Layout& layout,
                                            int64_t steps);

}  // namespace cpscope
