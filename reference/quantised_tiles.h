#pragma once

#include "reference/quantised_rows.h"
#include "reference/tile_attention.h"

#include <cstdint>
#include <span>
#include <vector>

namespace cpscope::reference {

/// Keys whose logits share a running maximum before it is updated, and queries of a tile.
inline constexpr int64_t kQuantisedTile = 128;

/// Rows of one head, contiguous.
struct HeadCopy {
  int64_t lanes = 0;
  std::vector<float> values;  // [row, lane]

  const float* row(int64_t index) const { return values.data() + index * lanes; }
};

/// The rows that a compute item multiplies. With one scale a tensor they are quantised already and
/// each is the same for all of its products; with mxfp8 the second of two is quantised in blocks
/// along tokens, and v the other way round.
struct QuantisedOperands {
  HeadCopy q, k, v;                                            // of the logits and of out
  HeadCopy turned_q, turned_k, turned_v, d_out, turned_d_out;  // backward: of dk, dq, dP, dP, dv
  std::vector<int32_t> q_blocks, kv_blocks;                    // [row] mxfp8; -1: padding
};

/// Tile attention in 8 bits of one head: tile_forward and tile_backward (tile_attention.h) with
/// FP8's roundings. P = exp(logit - running maximum) is cast with the scale of the weights; the row
/// sum is that of the weights before the cast. In the backward P = exp(logit - lse), and dS is cast
/// with its scale, with mxfp8 twice, in blocks along keys for dq and along queries for dk; the
/// gradient of a bias is dS before the cast. A weight that dropout keeps is enlarged after its
/// cast. Products are summed in fp32. A result of recipe delayed is cast too. Source: cuDNN's FP8
/// attention as its front end documents it, and TransformerEngine's recipes.
TileWork quantised_forward(const TileSettings<float>& settings, const QuantisedRules& rules,
                           std::span<const BandSlice> bands, const QuantisedOperands& operands,
                           HeadView<float> o, float* lse, int64_t lse_stride);

/// `delta` is that of the rows' d_out: quantised with one scale a tensor, as given with mxfp8.
TileWork quantised_backward(const TileSettings<float>& settings, const QuantisedRules& rules,
                            std::span<const BandSlice> bands, const QuantisedOperands& operands,
                            const float* lse, int64_t lse_stride, const float* delta,
                            HeadView<float> dq, HeadView<float> dk, HeadView<float> dv);

/// Casts rows of one head to 8 bits and back; the scale 0 leaves them as they are.
void cast_rows(Fp8Type type, float scale, int64_t rows, int64_t lanes, HeadView<float> values);

/// The operands of one query head. `d_out` has no data in the forward.
QuantisedOperands make_operands(const TileSettings<float>& settings, const QuantisedRules& rules,
                                HeadView<const float> q, HeadView<const float> k,
                                HeadView<const float> v, HeadView<const float> d_out,
                                std::vector<int32_t> q_blocks, std::vector<int32_t> kv_blocks,
                                int64_t q_rows, int64_t kv_rows);

}  // namespace cpscope::reference
