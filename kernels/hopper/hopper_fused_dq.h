#pragma once

#include "kernels/hopper/hopper_fused_stages.h"

#include <cstdint>

/// dq in the fused backward of sm_90a: how a consumer computes it and hands it over.
namespace cpscope::kernels::device {

template <class B>
struct FusedQueryGradient {
  const FusedParams& fused;
  const FusedShared<B>& at;
  int group;  // index of the consumer

  using Sums = float[B::kDqElements / 2];

  /// Starts dq = dS K, of all rows or of half of them, from element kFirst on.
  template <int kFirst = 0>
  __device__ __forceinline__ void start(Sums& dq, int number) const {
    const uint32_t grads = at.grads_of(number);
    const uint64_t grad_rows = matrix_descriptor(
        B::kAlternates ? grads : grads + group * kWarpgroupRows * kPanelRowBytes, 16);
    constexpr int kPanelBytes = B::kOwned * kPanelRowBytes;
    const uint64_t keys =
        matrix_descriptor(at.owned + kFirst / kBoxLanes * kPanelBytes, kPanelBytes);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < B::kOwned / 16; ++step) {
      wgmma_ss_rows<typename B::T>(dq, further(grad_rows, head_dim_step<B::kWalked>(step)),
                                   further(keys, row_step(step)), step > 0);
    }
    wgmma_commit();
  }

  /// The same in codes, of all rows.
  __device__ __forceinline__ void start_codes(Sums& dq, int number) const {
    const uint64_t grad_rows = matrix_descriptor(at.grads_of(number), 16);
    const uint64_t keys = matrix_descriptor(at.turned_keys, 16);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < B::kOwned / 32; ++step) {
      wgmma_ss_codes<B::kGradients, Fp8Type::e4m3>(dq, further(grad_rows, 32 * step),
                                                   further(keys, 32 * step), step > 0);
    }
    wgmma_commit();
  }

  /// Stores dq of a tile in shared memory, where the sending thread reads it; or, for a tile that
  /// closes, adds the sums of all others and writes the rows. The waits are outside of the branch:
  /// then the compiler knows after it that a warp's lanes have converged. kFirst: element of the
  /// first; kIsLast: this consumer has no more of the tile.
  template <int kFirst = 0, bool kIsLast = true>
  __device__ __forceinline__ void give(Sums& dq, int number, bool closes) const {
    wait_until_dq_left(at, number - 1);
    // For a tile that does not close this phase has ended already.
    TileBarrier(at.sums_full, closes ? number : number - 1).wait();
    if (closes) {
      close<kFirst>(dq);
    } else {
      visit_places<kFirst>([&](uint32_t first, uint32_t second, int near, int far, bool is_odd) {
        const float x[2] = {dq[near] * fused.base.scale, dq[near + 1] * fused.base.scale};
        const float y[2] = {dq[far] * fused.base.scale, dq[far + 1] * fused.base.scale};
        store_shared_pair(first, {is_odd ? y[0] : x[0], is_odd ? y[1] : x[1]});
        store_shared_pair(second, {is_odd ? x[0] : y[0], is_odd ? x[1] : y[1]});
      });
    }
    if constexpr (kIsLast) {
      publish_shared_writes();
      TileBarrier(at.dq_full, number).arrive();
    }
  }

 private:
  /// This thread's first row of a tile of dq.
  __device__ __forceinline__ int first_row() const {
    return (B::kAlternates ? 0 : group * kWarpgroupRows) + threadIdx.x / 32 % 4 * 16 +
           threadIdx.x % 32 / 4;
  }

  /// Visits the places of this thread's part of dq in shared memory, two numbers each, in pairs.
  /// `near` and `far` are the indices into dq that belong to the two places. Thread lanes of odd
  /// rows visit groups of columns in another order, so that no two lanes use one bank: with is_odd,
  /// the far one comes first.
  template <int kFirst, class Visit>
  __device__ __forceinline__ void visit_places(Visit visit) const {
    const int lane = threadIdx.x % 32, row = lane / 4, quarter = lane % 4;
    const bool is_odd = (row & 1) != 0;
    const int chunk = (quarter / 2) ^ row ^ (is_odd ? 4 : 0);
    const uint32_t at_row = at.dq + kFirst / kDqPanelElements * B::kDqPanelBytes +
                            first_row() * kPanelRowBytes + (quarter & 1) * 8;
#pragma unroll
    for (int panel = 0; panel < B::kDqElements / kDqPanelElements; ++panel) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {  // rows `row` and `row` + 8
        const uint32_t place = at_row + panel * B::kDqPanelBytes + half * 8 * kPanelRowBytes;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int near = 16 * panel + 4 * j + 2 * half;
          const uint32_t first = (chunk ^ 2 * j) << 4;
          visit(place + first, place + (first ^ 64), near, near + 8, is_odd);
        }
      }
    }
  }

  template <int kFirst>
  __device__ __forceinline__ void close(Sums& dq) const {
#pragma unroll
    for (int i = 0; i < B::kDqElements / 2; ++i) dq[i] *= fused.base.scale;
    if (load_shared_int(at.closed + ClosedRows::kHasSums) != 0) {
      visit_places<kFirst>([&](uint32_t first, uint32_t second, int near, int far, bool is_odd) {
        const FloatPair a = load_shared_pair(first), b = load_shared_pair(second);
        dq[near] = add_rounded(is_odd ? b.x : a.x, dq[near]);
        dq[near + 1] = add_rounded(is_odd ? b.y : a.y, dq[near + 1]);
        dq[far] = add_rounded(is_odd ? a.x : b.x, dq[far]);
        dq[far + 1] = add_rounded(is_odd ? a.y : b.y, dq[far + 1]);
      });
    }
    const int32_t row = load_shared_int(at.closed) + first_row();
    const int32_t end = load_shared_int(at.closed + ClosedRows::kEnd);
    const int32_t head = load_shared_int(at.closed + ClosedRows::kHead);
    using T = typename B::T;
    const DeviceRows& rows = fused.narrow_dq;
    T* const to =
        static_cast<T*>(rows.data) + head * rows.head_stride + row * rows.row_stride + kFirst;
    const int32_t elements = fused.base.head_dim_qk - kFirst;
    store_narrow_row<T, B::kDqElements, false>(to, row < end ? elements : 0, dq);
    store_narrow_row<T, B::kDqElements, true>(to + 8 * rows.row_stride,
                                              row + 8 < end ? elements : 0, dq);
  }
};

}  // namespace cpscope::kernels::device
