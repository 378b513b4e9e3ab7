#pragma once

#include "kernels/device/device_code.h"
#include "kernels/device/device_rows.h"

#include <cstdint>

/// What the CTAs of a launch share: a counter of work items, and the report that all have begun.
namespace cpscope::kernels::device {

/// Reports that the kernel has begun, from thread 0 of the last CTA: CTAs begin in the order of
/// their numbers, so all have begun when the last one has.
__device__ __forceinline__ void tell_begun(const Begun& begun) {
  if (begun.flag != nullptr && blockIdx.x == gridDim.x - 1 && threadIdx.x == 0)
    publish_to_system(begun.flag, begun.value);
}

/// Calls compute(number, draw) for the work items that fall to this CTA, until none of `num_work`
/// is left: first the one of its own number, then what it fetches from `counter`. compute calls
/// draw() once, which decides the next item; the number is there a memory access later. Items of
/// different lengths must be drawn near the end of the one before, or a CTA with a long item takes
/// another one while CTAs with short ones have none. There are at least as many items as CTAs.
/// `fetched`: two numbers in shared memory. All threads of the CTA call it together; sync(turn) is
/// a barrier of all, turn: 0 and 1 by turns.
template <class Compute, class Sync>
__device__ __forceinline__ void for_each_work_item(int32_t* counter, int32_t num_work,
                                                   int32_t* fetched, const Compute& compute,
                                                   const Sync& sync) {
  const auto num_ctas = static_cast<int32_t>(gridDim.x);
  auto work = static_cast<int32_t>(blockIdx.x);
  for (int turn = 0;; turn ^= 1) {
    if (const int32_t in_vain = work - num_work; in_vain >= 0) {
      // Every CTA ends with one fetch beyond the last item; the last one resets the counter for the
      // next launch.
      if (threadIdx.x == 0 && in_vain == num_ctas - 1) *counter = 0;
      return;
    }
    int32_t drawn = 0;
    compute(work, [&] {
      if (threadIdx.x == 0) drawn = num_ctas + atomic_add(counter, 1);
    });
    if (threadIdx.x == 0) fetched[turn] = drawn;
    // All warps are done with the shared memory, and see the next item.
    sync(turn);
    work = fetched[turn];
  }
}
template <class Compute>
__device__ __forceinline__ void for_each_work_item(int32_t* counter, int32_t num_work,
                                                   int32_t* fetched, const Compute& compute) {
  for_each_work_item(counter, num_work, fetched, compute, [](int) { __syncthreads(); });
}

}  // namespace cpscope::kernels::device
