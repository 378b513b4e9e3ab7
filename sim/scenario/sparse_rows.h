#pragma once

#include "sim/base/result.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <vector>

namespace cpscope {

/// The slices of masks that list the keys of each row, drawn by the generator's seed, the sequence
/// and the position alone. No row sees a later key.
///   top_k: the window_left keys before the row and itself, the first `count` keys, and as many
///     others as make `keys`, each earlier key equally likely (what an indexer selects in
///     DeepSeek-V3.2, with the sinks and the window that such models keep).
///   block_top_k: keys of its own block up to itself, and all of `blocks` earlier blocks, the same
///     for all rows of a block of queries (MoBA, arXiv:2502.13189, and the selected blocks of NSA,
///     arXiv:2502.11089, chosen for blocks of queries).
/// Error: more slices than kMaxFileSlices, or more draws than kMostDraws.
Result<std::vector<MaskSlice>> draw_sparse_slices(const MaskGenerator& generator,
                                                  const Batch& batch);

/// Draws of a mask: a few seconds.
inline constexpr int64_t kMostDraws = int64_t{1} << 25;

}  // namespace cpscope
