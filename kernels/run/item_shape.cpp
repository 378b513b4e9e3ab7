#include "kernels/run/item_shape.h"

#include "sim/run/dtype.h"
#include "sim/scenario/score_terms.h"

#include <algorithm>

namespace cpscope::kernels {

Generation newest_generation(int32_t compute_capability) {
  return compute_capability == 90    ? Generation::sm90
         : compute_capability == 100 ? Generation::sm100
                                     : Generation::portable;
}

HeadRange key_heads_of(const Attention& attention, HeadRange heads) {
  return attention.expands_rows() ? heads : kv_heads_of(attention, heads);
}

int32_t heads_per_key_head(const Attention& attention) {
  return attention.expands_rows() ? 1 : attention.heads / attention.kv_heads;
}

AttentionShape shape_of_heads(const Plan& plan, const ComputeItem& item) {
  const Attention& attention = plan.scenario.attention;
  const HeadRange kv_heads = key_heads_of(attention, item.heads);
  AttentionShape shape;
  shape.dtype = plan.scenario.numerics.dtype;
  shape.num_heads = item.heads.size();
  shape.num_kv_heads = kv_heads.size();
  shape.first_head = item.heads.begin;
  shape.first_kv_head = kv_heads.begin;
  shape.group = heads_per_key_head(attention);
  shape.head_dim_qk = attention.head_dim_qk;
  shape.head_dim_v = attention.head_dim_v;
  shape.scale = static_cast<float>(attention.effective_scale());
  shape.softcap = static_cast<float>(attention.softcap);
  shape.has_terms = has_score_terms(attention);
  shape.has_alibi_alone =
      attention.alibi && attention.bias == BiasShape::none && attention.dropout == 0;
  shape.is_latent = attention.has_v_in_k();
  const std::optional<Fp8>& fp8 = plan.scenario.numerics.fp8;
  shape.is_fp8 = fp8.has_value();
  shape.is_mx = fp8 && fp8->recipe == Fp8Recipe::mxfp8;
  return shape;
}

AttentionShape shape_of_item(const Plan& plan, const ComputeItem& item, const SliceSums& sums) {
  AttentionShape shape = shape_of_heads(plan, item);
  shape.q_rows = static_cast<int32_t>(plan.rows(item.q_tokens));
  shape.kv_rows = static_cast<int32_t>(plan.rows(item.kv_tokens));
  shape.keys_per_row = sums.pairs / std::max(1, shape.q_rows);
  shape.slices = sums;
  return shape;
}

bool is_merged_in_dtype(const Numerics& numerics) {
  return numerics.accumulate == Accumulate::dtype && element_bytes(numerics.dtype) == 2;
}

}  // namespace cpscope::kernels
