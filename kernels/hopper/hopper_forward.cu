#include "kernels/hopper/hopper_forward.h"
#include "kernels/hopper/hopper_forward_launch.h"

namespace cpscope::kernels {
namespace {

using device::ForwardBudget;
using device::ForwardParams;

// head_dim_qk and head_dim_v, consumers, streamed rows, stages of K, of V and of Q, whether
// warpgroups take turns, several heads in a tile, registers. A cap takes registers, so the widest
// heads stream smaller tiles where logits are altered.
template <class T, LogitForm kForm>
using Forward64 = ForwardBudget<T, 64, 64, 3, 128, 2, 2, 2, true, false, 32, 160, kForm>;
template <class T, LogitForm kForm>
using Forward128 = ForwardBudget<T, 128, 128, 2, 128, 2, 2, 2, true, false, 40, 232, kForm>;
template <class T, LogitForm kForm>
using Forward192 = ForwardBudget<T, 192, 128, 2, 128, 2, 2, 1, true, false, 40, 232, kForm>;
template <class T, LogitForm kForm>
using Forward256 = ForwardBudget<T, 256, 256, 2, kForm == LogitForm::plain ? 80 : 64, 2, 2, 1,
                                 false, false, 24, 240, kForm>;
// Rows that see few keys: a stationary tile has few steps, and idles at its begin and end. So three
// CTAs of one consumer share a multiprocessor, each with its own items; and a tile of fewer rows
// meets fewer documents. Steps of 48 keys leave room for three CTAs at head_dim 128.
template <class T, LogitForm kForm>
using Short64 = ForwardBudget<T, 64, 64, 1, 64, 3, 3, 2, false, true, 24, 136, kForm>;
template <class T, LogitForm kForm>
using Short128 = ForwardBudget<T, 128, 128, 1, 48, 1, 2, 2, false, true, 24, 136, kForm>;
// Rows that see many keys: more of them in a tile, so that K and V are read from the L2 cache less
// often. These reads take power, which bounds long sequences. Smaller steps leave registers for a
// third consumer.
template <class T>
using Tall128 = ForwardBudget<T, 128, 128, 3, 80, 2, 2, 2, true, false, 32, 160>;
template <class T>
using Tall192 = ForwardBudget<T, 192, 128, 3, 80, 2, 2, 1, true, false, 32, 160>;

constexpr int64_t kFewKeys = 256, kManyKeys = 1200;
// Under a causal mask warpgroups leave out tiles (kTrims), so fewer keys are enough, on average and
// of the last rows.
constexpr int64_t kManyCausalKeys = 850;
constexpr int64_t kFewKeys64 = 600;  // at head_dim 64: reading keys takes half as much

/// Number of query heads of a KV head that a tile holds, as a power of two: as many as divide the
/// heads of the item, so that tiles are whole.
template <class B>
int32_t heads_log2(const AttentionShape& shape) {
  int32_t log2 = 0;
  const auto fits = [&](int32_t heads) {
    return shape.group % heads == 0 && shape.first_head % heads == 0 &&
           shape.num_heads % heads == 0;
  };
  while (B::kHasHeads && log2 < device::kMostHeadsLog2 && fits(2 << log2)) ++log2;
  return log2;
}

/// Calls visit with the budget for a shape. At head_dim 128 short tiles read K and V too often,
/// unless they hold several heads.
template <class T, LogitForm kForm, class Visit>
auto with_budget(const AttentionShape& shape, Visit visit) {
  const int32_t qk = shape.head_dim_qk, v = shape.head_dim_v;
  const auto has_fewer_than = [&](int64_t keys) {
    return shape.keys_per_row > 0 && shape.keys_per_row < keys;
  };
  const bool is_tall =
      shape.keys_per_row >= kManyKeys ||
      (shape.keys_per_row >= kManyCausalKeys && shape.slices.most_keys >= 2 * kManyCausalKeys);
  const bool has_many = kForm == LogitForm::plain && is_tall;
  if (qk <= 64 && v <= 64) {
    return has_fewer_than(kFewKeys64) ? visit(Short64<T, kForm>{}) : visit(Forward64<T, kForm>{});
  }
  if (qk <= 128 && v <= 128) {
    if (has_fewer_than(kFewKeys) && heads_log2<Short128<T, kForm>>(shape) > 0)
      return visit(Short128<T, kForm>{});
    return has_many ? visit(Tall128<T>{}) : visit(Forward128<T, kForm>{});
  }
  if (qk <= 192 && v <= 128) return has_many ? visit(Tall192<T>{}) : visit(Forward192<T, kForm>{});
  return visit(Forward256<T, kForm>{});
}

template <class B>
void launch_budget(const ForwardLaunch& launch, Stream stream) {
  const AttentionShape& shape = launch.shape;
  ForwardParams p = forward_params(launch);
  p.heads_log2 = heads_log2<B>(shape);
  const RowBox owned{B::kOwned >> p.heads_log2, B::kHasHeads ? 1 << p.heads_log2 : 0};
  make_row_map(p.q, launch.q, shape.dtype, shape.num_heads, padded_lanes(shape.head_dim_qk), owned);
  make_row_map(p.k, launch.k, shape.dtype, shape.num_kv_heads, padded_lanes(shape.head_dim_qk),
               {B::kWalked});
  make_row_map(p.v, launch.v, shape.dtype, shape.num_kv_heads, padded_lanes(shape.head_dim_v),
               {B::kWalked});
  if (B::kSendsRows && launch.out_element != Dtype::fp32) {
    make_row_map(p.narrow_out, launch.out, shape.dtype, shape.num_heads,
                 padded_lanes(shape.head_dim_v), owned);
  }
  p.softcap = shape.softcap;
  p.q_k_factor = shape.softcap != 0.0f ? shape.scale / shape.softcap : shape.scale;
  if (shape.has_alibi_alone) p.alibi = launch.terms->alibi;
  p.logit_scale = B::kForm != LogitForm::plain ? 1.0f : shape.scale;
  launch_attend<B>(p, stream);
}

template <class T, LogitForm kForm>
void launch_head_dim(const ForwardLaunch& launch, Stream stream) {
  with_budget<T, kForm>(launch.shape, [&](auto budget) {
    launch_budget<decltype(budget)>(launch, stream);
    return 0;
  });
}

template <LogitForm kForm>
TileShape tile_shape_of_head_dim(const AttentionShape& shape) {
  return with_budget<Bf16, kForm>(shape, [&](auto budget) {
    using B = decltype(budget);
    const int32_t log2 = heads_log2<B>(shape);
    return TileShape{.owned_rows = B::kOwned >> log2,
                     .walked_rows = B::kWalked,
                     .heads = 1 << log2,
                     .ctas_per_sm = B::kCtasPerSm,
                     .warpgroup_rows = B::kTrims ? device::kWarpgroupRows : 0};
  });
}

}  // namespace

std::string why_not_hopper_forward(const AttentionShape& shape) {
  if (shape.dtype != Dtype::bf16 && shape.dtype != Dtype::fp16)
    return "the Hopper forward takes bf16 and fp16 only";
  if (shape.head_dim_qk > 256 || shape.head_dim_v > 256)
    return "the Hopper forward supports head_dim up to 256";
  // The largest q.k is found before the scale is applied, so the scale must keep the order.
  if (logit_form(shape) == LogitForm::plain && !(shape.scale > 0.0f))
    return "the Hopper forward needs a scale above 0";
  return "";
}

TileShape hopper_forward_tile_shape(const AttentionShape& shape) {
  return with_logit_form(shape, [&](auto form) { return tile_shape_of_head_dim<form()>(shape); });
}

void launch_hopper_forward(const ForwardLaunch& launch, Stream stream) {
  if (launch.query_tiles.num_work == 0) return;
  with_logit_form(launch.shape, [&](auto form) {
    launch.shape.dtype == Dtype::bf16 ? launch_head_dim<Bf16, form()>(launch, stream)
                                      : launch_head_dim<Fp16, form()>(launch, stream);
  });
}

}  // namespace cpscope::kernels
