#pragma once

#include "kernels/hopper_pipeline.h"
#include "kernels/hopper_products.h"

#include <cmath>
#include <cstdint>

/// What the backward kernels of sm_90a share. Every sum has one order: its owner's walk, or turns.
/// So two runs give the same bits.
namespace cpscope::kernels::device {

struct BackwardParams {
  TensorMap q, k, v, d_out;
  DeviceTiles tiles;
  int32_t q_rows;
  int32_t* counter;
  const float* log2_lse;  // [local head][q row], +inf for rows that see nothing
  const float* delta;     // [local head][q row]
  DeviceRows first;       // dq, or dk
  DeviceRows second;      // dv
  int32_t lanes_qk, lanes_v;
  int32_t num_heads, first_head, first_kv_head, group;
  float scale;
  float logit_log2;   // of q.k, or of tanh(q.k * inverse_cap), to the exponent of 2
  float inverse_cap;  // scale / softcap
};

/// Query heads [first, last) of the item that read a kv head.
struct HeadRange {
  int32_t first, last;

  __device__ HeadRange(const BackwardParams& p, int32_t kv_head) {
    const int32_t begin = (p.first_kv_head + kv_head) * p.group - p.first_head;
    first = begin > 0 ? begin : 0;
    last = begin + p.group < p.num_heads ? begin + p.group : p.num_heads;
  }
};

/// What a thread knows of its two query rows.
struct QueryRows {
  float log2_lse[2], delta[2];
  RowRanges ranges;

  __device__ __forceinline__ QueryRows(const BackwardParams& p, int32_t first_row, int32_t head) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int32_t row = first_row + 8 * r;
      const int64_t place = static_cast<int64_t>(head) * p.q_rows + row;
      log2_lse[r] = row < p.q_rows ? p.log2_lse[place] : INFINITY;
      delta[r] = row < p.q_rows ? p.delta[place] : 0.0f;
    }
  }
};

/// Probability of a pair and the slope of its logit behind the cap (1 without one).
template <bool kHasCap>
__device__ __forceinline__ float weigh(const BackwardParams& p, float product, float log2_lse,
                                       float& slope) {
  if constexpr (kHasCap) {
    const TanhPoint capped = tanh_with_slope(product * p.inverse_cap);
    slope = capped.slope;
    return exp2_approx(capped.value * p.logit_log2 - log2_lse);
  } else {
    slope = 1.0f;
    return exp2_approx(product * p.logit_log2 - log2_lse);
  }
}

/// Where things lie in shared memory: the owned pair of tiles, kStages of the walked pair, and (for
/// key tiles) of what the kernel must know of every walked query row.
template <class B>
struct BackwardShared {
  uint32_t owned, walked, row_facts;
  uint32_t owned_full, owned_free, first_full, second_full, walked_free, deal;

  __device__ BackwardShared() {
    owned = align_to_swizzle(shared_address(dynamic_shared()));
    walked = owned + B::kOwnedBytes;
    row_facts = walked + B::kStages * B::kWalkedBytes;
    owned_full = row_facts + B::kStages * B::kFactBytes;
    owned_free = owned_full + 8;
    first_full = owned_free + 8;
    second_full = first_full + 8 * B::kStages;
    walked_free = second_full + 8 * B::kStages;
    deal = walked_free + 8 * B::kStages;
  }

  /// Arrivals that fill the first of a walked pair and that free the pair; fact_warps: warps that
  /// fetch what belongs to rows.
  __device__ void init(int first_arrivals, int free_arrivals, int fact_warps) const {
    constexpr int kConsumerWarps = 4 * B::kConsumers;
    if (threadIdx.x == 0) {
      mbarrier_init(owned_full, 1);
      mbarrier_init(owned_free, kConsumerWarps);
      for (int i = 0; i < B::kStages; ++i) {
        mbarrier_init(first_full + 8 * i, first_arrivals);
        mbarrier_init(second_full + 8 * i, 1);
        mbarrier_init(walked_free + 8 * i, free_arrivals);
      }
      WorkDeal(deal).init(kConsumerWarps + fact_warps, 1);
      mbarrier_init_fence();
    }
    __syncthreads();
  }
};

/// One configuration of a backward kernel.
template <class T_, int kQk_, int kV_, int kOwned_, int kWalked_, int kStages_, int kFactBytes_,
          int kProducerRegisters_, int kConsumerRegisters_, bool kHasCap_>
struct BackwardBudget {
  using T = T_;
  static constexpr int kQk = kQk_, kV = kV_, kOwned = kOwned_, kWalked = kWalked_;
  static constexpr int kStages = kStages_, kFactBytes = kFactBytes_;
  static constexpr bool kHasCap = kHasCap_;
  static constexpr int kConsumers = 2;
  static constexpr int kThreads = kWarpgroupThreads * (kConsumers + 1);
  static constexpr int kProducerRegisters = kProducerRegisters_;
  static constexpr int kConsumerRegisters = kConsumerRegisters_;
  static constexpr int kOwnedFirstBytes = kOwned * kQk * 2;  // q, or k
  static constexpr int kOwnedBytes = kOwned * (kQk + kV) * 2;
  static constexpr int kFirstBytes = kWalked * kQk * 2;  // k, or q
  static constexpr int kSecondBytes = kWalked * kV * 2;  // v, or d_out
  static constexpr int kWalkedBytes = kFirstBytes + kSecondBytes;
  static constexpr int kSharedBytes =
      1024 + kOwnedBytes + kStages * (kWalkedBytes + kFactBytes) + 256 + WorkDeal::kBytes;

  static_assert(kOwned == kConsumers * kWarpgroupRows && kWalked % 16 == 0);
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <=
                (kConsumers + 1) * launch_registers(kThreads));
  static_assert(kSharedBytes <= kMaxSharedBytes);
};

/// Has the head too many lanes for the kernels of 64 and 128?
inline bool is_wide(const AttentionShape& shape) {
  return shape.head_dim_qk > 128 || shape.head_dim_v > 128;
}

inline BackwardParams make_backward_params(const BackwardLaunch& launch) {
  const AttentionShape& shape = launch.shape;
  BackwardParams p{};
  p.q_rows = shape.q_rows;
  p.log2_lse = launch.log2_lse;
  p.delta = launch.delta;
  p.lanes_qk = padded_lanes(shape.head_dim_qk);
  p.lanes_v = padded_lanes(shape.head_dim_v);
  p.num_heads = shape.num_heads;
  p.first_head = shape.first_head;
  p.first_kv_head = shape.first_kv_head;
  p.group = shape.group;
  p.scale = shape.scale;
  const bool has_cap = shape.softcap != 0.0f;
  p.logit_log2 = (has_cap ? shape.softcap : shape.scale) * kLog2E;
  p.inverse_cap = has_cap ? shape.scale / shape.softcap : 0.0f;
  return p;
}

/// Maps for tiles of q_rows query rows and kv_rows key rows.
inline void make_backward_maps(const BackwardLaunch& launch, int32_t q_rows, int32_t kv_rows,
                               BackwardParams& p) {
  const AttentionShape& shape = launch.shape;
  make_row_map(p.q, launch.q, shape.dtype, shape.num_heads, p.lanes_qk, q_rows);
  make_row_map(p.d_out, launch.d_out, shape.dtype, shape.num_heads, p.lanes_v, q_rows);
  make_row_map(p.k, launch.k, shape.dtype, shape.num_kv_heads, p.lanes_qk, kv_rows);
  make_row_map(p.v, launch.v, shape.dtype, shape.num_kv_heads, p.lanes_v, kv_rows);
}

}  // namespace cpscope::kernels::device
