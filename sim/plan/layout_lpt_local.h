#pragma once

#include "sim/plan/chunk_reach.h"
#include "sim/plan/mask_bands.h"

#include <cstdint>
#include <vector>

namespace cpscope {

/// Most chunks that lpt_local handles: their reach takes 32 MiB.
inline constexpr int64_t kMaxLocalChunks = 16'384;

ChunkReach find_reach(const MaskBands& mask, const BatchSlots& slots, int64_t chunk);

/// Load limit of a rank under lpt_local: 2 % more than the fullest rank of lpt.
int64_t local_load_bound(const std::vector<int64_t>& areas, int32_t ranks);

/// Key chunks that ranks see and do not hold, summed over ranks. `held`: [rank] chunks. Under self
/// attention a rank holds the keys of its chunks, else rank r holds the r-th part of all keys.
int64_t count_foreign_chunks(const ChunkReach& reach, const std::vector<std::vector<int64_t>>& held,
                             bool same_kv);

/// Assigns chunks to ranks so that ranks see few keys of other ranks: as many chunks per rank as
/// assign_longest_first, no rank above local_load_bound, and never more foreign keys than with that
/// assignment.
/// A heuristic. Chunks go, largest first, to the rank whose foreign keys grow least among those
/// that the other chunks can still fill evenly (four settings of "evenly"), and joined neighbouring
/// chunks likewise. Then pairs of chunks of the best of these assignments change places while that
/// helps. The work is limited by a count, not by time, so one batch always gives one assignment.
/// `group`: that many consecutive ranks share their rows, as under a2a+p2p, where each computes all
/// of them for its share of the heads. Then load and foreign keys are the group's, a key that
/// several of its ranks see counts once, and what is said of ranks above holds for groups. Inside a
/// group it makes no difference which rank owns a chunk: the ranks get the group's chunks in order
/// of id, evenly to within one.
/// Returns [rank] ascending chunk ids. Expects chunks >= ranks, chunks <= kMaxLocalChunks and ranks
/// a multiple of group.
std::vector<std::vector<int64_t>> assign_near_keys(const std::vector<int64_t>& areas,
                                                   const ChunkReach& reach, int32_t ranks,
                                                   bool same_kv, int32_t group = 1);

}  // namespace cpscope
