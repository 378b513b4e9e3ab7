#pragma once

#include "sim/base/result.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <vector>

namespace cpscope {

/// The slices of a mask given by name (not of one from a file): few, and no two share a cell. i and
/// j are positions of a query and a key in one sequence.
///   block_causal: floor(i/block) >= floor(j/block).
///   prefix_tree: segments follow one another; a row sees its own segment up to itself, and all of
///     its parent, its parent's parent, ... With `sequence`, the other sequences are causal.
///   image_groups: j <= i, or both tokens are in one group (the images of Gemma 3).
///   global_tokens: i < count or j < count, or inside the window of i and, if causal, j <= i
///     (Longformer, arXiv:2004.05150, section 3.1).
///   block_diffusion: 2L tokens, L noisy ones and then the L clean ones. Noisy block b sees itself
///     and the clean blocks before b, clean block b the clean blocks up to b. These are the masks
///     M_BD, M_OBC and M_BC by which BD3-LM is trained (arXiv:2503.09573); the last block of a half
///     may be shorter.
///   top_k, block_top_k: sparse_rows.h.
/// Needs a generator that fits the batch (scenario_parse_mask.cpp). Error: more than kMaxSlices, or
/// of drawn rows what sparse_rows.h says.
Result<std::vector<MaskSlice>> generate_slices(const MaskGenerator& generator, const Batch& batch);

/// Where the valid tokens of a sequence stand among those of the batch.
struct ValidTokens {
  int64_t q = 0, k = 0;           // valid tokens before it
  int64_t queries = 0, keys = 0;  // its own
};

/// [sequence]
std::vector<ValidTokens> find_valid_tokens(const Batch& batch);

/// Adds the pairs of one sequence with j <= i.
void add_causal_slices(const ValidTokens& sequence, std::vector<MaskSlice>& slices);

}  // namespace cpscope
