#pragma once

#include "sim/plan/mask_bands.h"

#include <cstdint>
#include <vector>

namespace cpscope {

/// Which keys the queries of each chunk see, by chunks of as many keys: bit k of row c says that
/// chunk c sees some key of key chunk k. Both count packed padded tokens.
struct ChunkReach {
  int64_t chunks = 0;
  int64_t key_chunks = 0;
  int64_t words = 0;           // of 64 key chunks, a row
  std::vector<uint64_t> bits;  // [chunk][word]

  const uint64_t* row(int64_t chunk) const { return bits.data() + chunk * words; }
};

/// Most chunks that lpt_local weighs: their reach takes 32 MiB.
inline constexpr int64_t kMaxLocalChunks = 16'384;

ChunkReach find_reach(const MaskBands& mask, const BatchSlots& slots, int64_t chunk);

/// What lpt_local may load a rank with: 2 % more than the fullest rank of lpt.
int64_t local_load_bound(const std::vector<int64_t>& areas, int32_t ranks);

/// Key chunks that ranks see and do not hold, summed over ranks. `held`: [rank] chunks; under self
/// attention a rank holds the keys of its chunks, else the r-th part of all keys.
int64_t count_foreign_chunks(const ChunkReach& reach, const std::vector<std::vector<int64_t>>& held,
                             bool same_kv);

/// Deals chunks to ranks as deal_longest_first does, as many to each, none fuller than
/// local_load_bound, so that ranks see few keys of others; never more than under that deal. A
/// heuristic: chunks go, largest first, to the rank whose foreign keys grow least among those that
/// the rest can still fill evenly (four readings of "evenly"); then pairs of chunks change places
/// while that helps. Returns [rank] ascending chunk ids. Expects chunks >= ranks and chunks <=
/// kMaxLocalChunks.
std::vector<std::vector<int64_t>> deal_near_keys(const std::vector<int64_t>& areas,
                                                 const ChunkReach& reach, int32_t ranks,
                                                 bool same_kv);

}  // namespace cpscope
