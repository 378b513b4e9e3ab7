#pragma once

#include "kernels/device/merge_weights.h"
#include "kernels/hopper/hopper_code_softmax.h"
#include "kernels/hopper/hopper_forward_stages.h"

#include <cmath>
#include <cstdint>

/// The end of an item's rows in the Hopper forward: their sums are finished, merged with earlier
/// results, and written.
namespace cpscope::kernels::device {

/// Writes one of a thread's two rows of `out`; it branches only on parameters.
template <class B, bool kSecond>
__device__ __forceinline__ void store_out(const ForwardParams& p, int64_t row, int32_t head,
                                          int32_t elements, const float (&out)[B::kV / 2]) {
  const int64_t place = row * p.out_row_stride + head * p.out_head_stride;
  using T = typename B::Out;
  if (p.is_narrow != 0) {
    store_narrow_row<T, B::kV, kSecond>(static_cast<T*>(p.out) + place, elements, out);
  } else if (p.rounds != 0) {
    store_rounded_row<T, B::kV, kSecond>(static_cast<float*>(p.out) + place, elements, out);
  } else {
    store_row<B::kV, kSecond>(static_cast<float*>(p.out) + place, elements, out, 1.0f);
  }
}

/// Writes the results of rows without a visible key.
template <class B>
__device__ __forceinline__ void write_empty_rows(const ForwardParams& p, const OwnedTile& tile,
                                                 int32_t first_row, int32_t head) {
  const float zeros[B::kV / 2] = {};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int64_t row = first_row + TileRows<B::kHasHeads>(p).step() * r;
    const bool is_there = row < tile.end;
    store_if(is_there && threadIdx.x % 4 == 0, p.lse + row * p.lse_row_stride + head, -INFINITY);
    store_out<B, false>(p, row, head, is_there ? p.out_head_dim : 0, zeros);
  }
}

/// Address of a thread's first two elements of one of its rows of `out` in fp32.
__device__ __forceinline__ float* out_place(const ForwardParams& p, int64_t row, int32_t head) {
  return static_cast<float*>(p.out) + row * p.out_row_stride + head * p.out_head_stride +
         2 * (threadIdx.x % 4);
}

/// Rounds merged rows that see none of these keys.
template <class B>
__device__ __forceinline__ void round_rows(const ForwardParams& p, const OwnedTile& tile,
                                           int32_t first_row, int32_t head) {
  using T = typename B::Out;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int64_t row = first_row + TileRows<B::kHasHeads>(p).step() * r;
    if (row >= tile.end) continue;
    float* const place = out_place(p, row, head);
    for (int32_t element = 0; element < p.out_head_dim; element += 8) {
      const FloatPair pair = *reinterpret_cast<const FloatPair*>(place + element);
      const FloatPair rounded = round_pair<T>(pair.x, pair.y);
      store_pair(place + element, rounded.x, rounded.y);
    }
  }
}

/// What a thread keeps of an item whose sums are finished and whose rows are not yet written.
struct UnwrittenItem {
  int32_t first_row = 0, rows_end = 0;  // nothing is written if they are equal
  int32_t head = 0;
  float lse;        // of the row that this thread reports (told_row)
  float max_logit;  // of the warp's rows of the head; -inf: no key is visible; NaN: a sum is NaN
};

/// Index of the thread's row that this thread lane reports. Lanes of a quad have the same two rows;
/// even lanes report the first, odd ones the second.
__device__ __forceinline__ int told_row() { return static_cast<int>(threadIdx.x & 1); }

/// Finishes the softmax of an item's rows. factor: turns sums of P V into the mean of V. A sum is
/// at least 1, the weight of the reference, so approximations that flush subnormal numbers are
/// sufficient.
template <class B>
__device__ __forceinline__ UnwrittenItem end_softmax(const ForwardParams& p,
                                                     const SoftmaxRows<B>& state, int32_t first_row,
                                                     int32_t rows_end, int32_t head,
                                                     float (&factor)[2]) {
  UnwrittenItem item{first_row, rows_end, head, -INFINITY, -INFINITY};
  const TileRows<B::kHasHeads> rows(p);
  const bool is_second = told_row() != 0;
  float sum = is_second ? state.sum[1] : state.sum[0];
  sum += shuffle_xor(is_second ? state.sum[0] : state.sum[1], 1);
  sum += shuffle_xor(sum, 2);
  const bool is_empty = sum == 0.0f;
  const float told = is_empty ? 0.0f : reciprocal_approx(sum);
  const float other = shuffle_xor(told, 1);
  factor[0] = is_second ? other : told;
  factor[1] = is_second ? told : other;
  const float log_sum = logf(sum);
  if constexpr (B::kHasCodes) {
    const float subtracted = is_second ? state.subtracted[1] : state.subtracted[0];
    item.lse = is_empty ? -INFINITY : subtracted * kLn2 + log_sum;
  } else {
    const float reference = is_second ? state.reference[1] : state.reference[0];
    item.lse = is_empty ? -INFINITY : reference * p.logit_scale + log_sum;
    // The sum is that of larger weights.
    if constexpr (B::kIsFp8) item.lse -= p.weight_log2 * kLn2;
  }
  if constexpr (B::kIsFp8) {
    factor[0] *= p.v_descale;
    factor[1] *= p.v_descale;
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool is_there = first_row + rows.step() * r < rows_end;
    item.max_logit = fmaxf(item.max_logit, is_there ? state.largest_logit(p, r) : -INFINITY);
  }
  // The running maximum ignores NaNs, so the sum is checked.
  if (sum != sum && first_row + rows.step() * told_row() < rows_end) item.max_logit = NAN;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float largest = max_or_nan(item.max_logit, shuffle_xor(item.max_logit, step));
    // Lanes in between have rows of other heads.
    const bool is_same_head = step < 4 || step >= 4 * rows.num_heads();
    item.max_logit = is_same_head ? largest : item.max_logit;
  }
  return item;
}

/// Merges an item's rows, whose mean of V is in `out`, with the results of earlier keys. No
/// products may be in flight.
template <class B>
__device__ __forceinline__ void merge_rows(const ForwardParams& p, UnwrittenItem& item,
                                           float (&out)[B::kV / 2]) {
  const int32_t step = TileRows<B::kHasHeads>(p).step();
  const int64_t told = item.first_row + step * told_row();
  const bool is_told = told < item.rows_end;
  const float before = is_told ? p.lse[told * p.lse_row_stride + item.head] : -INFINITY;
  const MergeWeights own(before, item.lse);
  const float other_before = shuffle_xor(own.before, 1), other_added = shuffle_xor(own.added, 1);
  item.lse = own.lse;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool is_own = told_row() == r;
    const float weight_before = is_own ? own.before : other_before;
    const float weight_added = is_own ? own.added : other_added;
    const int64_t row = item.first_row + step * r;
    const int32_t elements = row < item.rows_end ? p.out_head_dim : 0;
    const float* const place = out_place(p, row, item.head);
#pragma unroll
    for (int group = 0; group < B::kV / 8; ++group) {
      if (8 * group >= elements) continue;
      const FloatPair pair = *reinterpret_cast<const FloatPair*>(place + 8 * group);
      float& x = out[4 * group + 2 * r];
      float& y = out[4 * group + 2 * r + 1];
      x = merge_values(pair.x, weight_before, x, weight_added);
      y = merge_values(pair.y, weight_before, y, weight_added);
    }
  }
}

/// The producer's thread that sends rows, from the stage of Q of every item with runs, after all
/// consumers have stored them there. Consumers do that after they have begun the next item. In the
/// first item they have no rows to store and signal all the same; the last item's rows they write
/// themselves.
template <class B>
__device__ __forceinline__ void send_rows(const ForwardParams& p, const ForwardShared<B>& at) {
  const TileRows<B::kHasHeads> rows(p);
  TileScheduler scheduler(at.scheduler);
  OwnedTile tile;  // of the previous item
  int32_t head = 0;
  for (int num_begun = 0;;) {
    const ScheduledItem item = scheduler.read_alone();
    if (item.is_last()) break;
    if (item.tile.num_runs == 0) continue;
    mbarrier_wait(at.out_full, num_begun & 1);
    if (num_begun > 0 && p.is_narrow != 0) {
      send_panels<B::kOwned, B::kHasHeads>(at.q + (num_begun - 1) % 2 * B::kQBytes, &p.narrow_out,
                                           tile.begin, tile.end, head, p.out_head_dim);
      commit_boxes();
      wait_for_boxes_read();
    }
    mbarrier_arrive(at.q_free);
    ++num_begun;
    tile = item.tile;
    head = rows.head_of(0, item.head);
  }
  wait_for_boxes();
}

/// Stores a warp's rows in the dtype to shared memory, for send_rows. to: address of the
/// warpgroup's rows.
template <class B>
__device__ __forceinline__ void place_rows(uint32_t to, const float (&out)[B::kV / 2]) {
  using T = typename B::Out;
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16;
  const uint32_t at_row = to + row * kPanelRowBytes + (((lane / 16) ^ (row & 7)) << 4);
#pragma unroll
  for (int step = 0; step < B::kV / 16; ++step) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      words[i] = pack<T>(out[8 * step + 2 * i], out[8 * step + 2 * i + 1]);
    store_matrices_x4((at_row ^ (step % 4 << 5)) + step / 4 * B::kOwned * kPanelRowBytes, words);
  }
}

/// Writes the rows and raises the head's largest logit. kPlaces: rows in the dtype are sent from
/// shared memory; `place`: address of the warpgroup's rows there. It branches only on parameters,
/// because products are in flight.
template <class B, bool kPlaces>
__device__ __forceinline__ void write_rows(const ForwardParams& p, const ForwardShared<B>& at,
                                           const UnwrittenItem& item, uint32_t place,
                                           const float (&out)[B::kV / 2]) {
  const int lane = threadIdx.x % 32;
  const TileRows<B::kHasHeads> rows(p);
  const bool is_placed = kPlaces && p.is_narrow != 0;
  if (is_placed) place_rows<B>(place, out);
  const int64_t told = item.first_row + rows.step() * told_row();
  store_if(told < item.rows_end && lane % 4 < 2, p.lse + told * p.lse_row_stride + item.head,
           item.lse);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (is_placed) continue;
    const int64_t row = item.first_row + rows.step() * r;
    const int32_t elements = row < item.rows_end ? p.out_head_dim : 0;
    if (r == 0) {
      store_out<B, false>(p, row, item.head, elements, out);
    } else {
      store_out<B, true>(p, row, item.head, elements, out);
    }
  }
  const bool has_logit = item.first_row < item.rows_end && item.max_logit != -INFINITY;
  const bool is_first = lane % 4 == 0 && lane / 4 < rows.num_heads();  // first thread lane of its
                                                                       // head
  atomic_max_if(is_first && has_logit && p.max_logit != nullptr, p.max_logit + item.head,
                item.max_logit * p.logit_scale);
  if constexpr (kPlaces) {
    publish_shared_writes();
    mbarrier_arrive(at.out_full);  // every lane signals its own stores
  }
}

}  // namespace cpscope::kernels::device
