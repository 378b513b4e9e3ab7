#include "kernels/hopper/hopper_backward.h"
#include "kernels/hopper/hopper_gradient_consumer.h"
#include "kernels/hopper/hopper_gradient_launch.h"
#include "kernels/hopper/hopper_wide_gradient_consumer.h"
#include "kernels/tiles/work_order.h"

// dq, dk and dv of one compute item on sm_90a, in one pass: five products a tile instead of seven.
//
// A CTA holds 128 stationary keys of a KV head and streams the query rows that see them, for every
// query head of the group: S' = K Q^T, dP' = V dO^T, dv += P' dO, dk += dS' Q (primes: transposed),
// and dq = dS K. P' and dS' stay in registers as operands; dS also goes to shared memory, because
// dq needs the keys of both consumer warpgroups: they make dq of tiles alternately (head_dim 128),
// or half of its rows each (head_dim 64), or two and one of three parts, alternately (192/128). A
// streamed row is a column here. lse and delta are rows of an operand (row_offsets.h), so that the
// products subtract them from S' and dP'. With a cap or ALiBi, and at 192/128, they are stored in
// shared memory by the producer's second warp, as are, in any case, the keys that a row sees; with
// ALiBi also its position.
//
// At 192/128 dk and dv take 160 registers. S', dP' and each part of dq have the same 32; P' stays
// until dS as the operand and what its rounding has left out, which is 17 bits at least. Limit
// there: shared memory. At 128 bytes a clock a tile takes 3900 clocks of it, 3300 of products.
//
// dq of a tile is added to global memory by TMA, for the tiles of a block of query rows one after
// another (TileList::turns): the order of additions is that of the tile list, so two runs give the
// same bits. Query rows are streamed from the last to the first: under a causal mask the CTAs of a
// head then reach a block in the order of their turns. kernels/notes/backward.md gives the waits
// that remain.
//
// If dq is written in the dtype, the tile that takes the last turn at a block adds the block's sums
// to its own in registers and writes the rows (TileRun::closes).
//
// Ladder: v1 is the portable kernels (query_gradient.cu, key_gradient.cu), v2 was Hopper kernels
// for dq and for dk with dv; v3 was one kernel, v4 wrote dq in the dtype, v5 has consumers that
// need not stay in step, v6 products that subtract lse and delta, v7 streamed tiles taken for all
// heads of a group, v8 groups split into parts, v9 head_dims of 192/128. Grid: one CTA per SM, work
// fetched with a counter; 128 threads for the producer and for each consumer. Shared memory:
// stationary K and V, two stages of Q and dO (192/128: one of dO), two or three of dS, dq of a
// tile; panels with the 128-byte swizzle. Accuracy as v1: fp32 sums, P and dS rounded to the dtype.
// Source: FlashAttention-3 (arXiv:2407.08608), the fused backward; turns: its deterministic mode.

namespace cpscope::kernels {
namespace device {
namespace {

// head_dim (of q and k), streamed rows (head_dim of v).
template <class T, bool kByTile, LogitForm kForm>
using Fused64 = FusedBudget<T, 64, 128, kByTile, kForm>;
template <class T, bool kByTile, LogitForm kForm>
using Fused128 = FusedBudget<T, 128, 64, kByTile, kForm>;
template <class T, bool kByTile>
using Fused192 = FusedBudget<T, 192, 64, kByTile, LogitForm::plain, 128>;

bool is_small(const AttentionShape& shape) {
  return shape.head_dim_qk <= 64 && shape.head_dim_v <= 64;
}

template <class T, bool kByTile, LogitForm kForm>
void launch_head_dim(const BackwardLaunch& launch, Stream stream) {
  if constexpr (kForm == LogitForm::plain) {
    if (!is_up_to_128(launch.shape)) return launch_budget<Fused192<T, kByTile>>(launch, stream);
  }
  if (is_small(launch.shape)) {
    launch_budget<Fused64<T, kByTile, kForm>>(launch, stream);
  } else {
    launch_budget<Fused128<T, kByTile, kForm>>(launch, stream);
  }
}

template <class T, LogitForm kForm>
void launch_order(const BackwardLaunch& launch, Stream stream) {
  if (launch.key_tiles.walks_by_tile) {
    launch_head_dim<T, true, kForm>(launch, stream);
  } else {
    launch_head_dim<T, false, kForm>(launch, stream);
  }
}

template <class B>
TileShape tile_shape() {
  const int32_t together = resident_ctas(gradients_on_hopper<B>, B::kThreads, B::kSharedBytes);
  return {.owned_rows = B::kOwned,
          .walked_rows = B::kWalked,
          .by_blocks = true,
          .ctas_together = together < int32_t{kHopperCtas} ? 0 : int32_t{kHopperCtas}};
}

}  // namespace
}  // namespace device

std::string why_not_hopper_backward(const AttentionShape& shape) {
  if (shape.dtype != Dtype::bf16 && shape.dtype != Dtype::fp16)
    return "the Hopper backward takes bf16 and fp16 only";
  if (shape.head_dim_qk > 256 || shape.head_dim_v > 256)
    return "the Hopper backward supports head_dim up to 256";
  return "";
}

bool is_hopper_backward_fused(const AttentionShape& shape) {
  if (is_up_to_128(shape)) return !shape.is_mx;
  return shape.head_dim_qk <= 192 && shape.head_dim_v <= 128 && !shape.is_fp8 &&
         logit_form(shape) == LogitForm::plain;
}

TileShape hopper_gradients_tile_shape(const AttentionShape& shape) {
  if (!is_up_to_128(shape)) return device::tile_shape<device::Fused192<Bf16, false>>();
  return device::is_small(shape)
             ? device::tile_shape<device::Fused64<Bf16, false, LogitForm::plain>>()
             : device::tile_shape<device::Fused128<Bf16, false, LogitForm::plain>>();
}

void launch_hopper_gradients(const BackwardLaunch& launch, Stream stream) {
  with_logit_form(launch.shape, [&](auto form) {
    launch.shape.dtype == Dtype::bf16 ? device::launch_order<Bf16, form()>(launch, stream)
                                      : device::launch_order<Fp16, form()>(launch, stream);
  });
}

}  // namespace cpscope::kernels
