// Rows to other devices, by a kernel.
// Mapping: groups of 16 bytes, one a thread; the threads of the grid share the groups of all copies
// evenly, so that all receivers are written to at the same time.
#include "kernels/device_code.h"
#include "kernels/launch.h"
#include "kernels/row_push.h"

#include <algorithm>

namespace cpscope::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksEach = 4;  // of a multiprocessor
constexpr int kGroupBytes = 16;

struct alignas(kGroupBytes) Group {
  uint32_t words[4];
};

int64_t groups_of(const ByteRows& rows) {
  return rows.row_bytes / kGroupBytes * rows.num_rows * rows.num_blocks;
}

__global__ void __launch_bounds__(kThreads, kBlocksEach)
    push_rows(const __grid_constant__ RowPush p) {
  const int64_t threads = int64_t{gridDim.x} * kThreads;
  int64_t mine = int64_t{blockIdx.x} * kThreads + threadIdx.x;  // of the present copy's groups
  for (int32_t c = 0; c < p.num_copies; ++c) {
    const ByteRows& rows = p.copies[c];
    const auto in_row = static_cast<int32_t>(rows.row_bytes / kGroupBytes);
    const auto in_block = static_cast<int32_t>(rows.num_rows);
    const int64_t count = rows.num_blocks * in_block * in_row;
    for (; mine < count; mine += threads) {
      const auto all_rows = static_cast<int32_t>(mine / in_row);
      const int64_t block = all_rows / in_block, row = all_rows % in_block;
      const int64_t place = mine % in_row * kGroupBytes;
      const int64_t from = (block * rows.from_block_rows + row) * rows.from_pitch + place;
      const int64_t to = (block * rows.to_block_rows + row) * rows.to_pitch + place;
      *reinterpret_cast<Group*>(static_cast<uint8_t*>(rows.to) + to) =
          *reinterpret_cast<const Group*>(static_cast<const uint8_t*>(rows.from) + from);
    }
    // The next copy's groups follow this one's.
    mine -= count;
  }
  device::fence_system();
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (device::atomic_add(p.num_done, 1) != static_cast<int32_t>(gridDim.x) - 1) return;
  *p.num_done = 0;
  device::fence_system();
  for (int32_t f = 0; f < p.num_flags; ++f) device::publish_to_system(p.flags[f], p.value);
}

}  // namespace

bool can_push(const ByteRows& rows) {
  const auto is_whole = [](int64_t bytes) { return bytes % kGroupBytes == 0; };
  return is_whole(reinterpret_cast<intptr_t>(rows.from)) &&
         is_whole(reinterpret_cast<intptr_t>(rows.to)) && is_whole(rows.from_pitch) &&
         is_whole(rows.to_pitch) && is_whole(rows.row_bytes) &&
         rows.num_blocks * rows.num_rows < INT32_MAX;
}

void launch_row_push(const RowPush& push, Stream stream) {
  int64_t groups = 0;
  for (int32_t c = 0; c < push.num_copies; ++c) groups += groups_of(push.copies[c]);
  const int64_t most = resident_ctas(push_rows, kThreads, 0);
  const int64_t blocks = std::clamp<int64_t>((groups + kThreads - 1) / kThreads, 1, most);
  launch_kernel(push_rows, static_cast<int32_t>(blocks), kThreads, 0, stream, push);
}

}  // namespace cpscope::kernels
