// Writes rows to other devices, by a kernel.
// Mapping: groups of 16 bytes, one a thread. Each CTA has an equal stretch of a piece's groups, so
// that all receivers are written to at the same time.
#include "kernels/device/device_code.h"
#include "kernels/device/launch.h"
#include "kernels/rows/row_push.h"

#include <algorithm>

namespace cpscope::kernels {
namespace {

constexpr int kThreads = 1024;
constexpr int kGroupBytes = 16;
constexpr int kAhead = 4;  // groups that a thread reads before it writes

struct alignas(kGroupBytes) Group {
  uint32_t words[4];
};

__host__ __device__ __forceinline__ uint32_t groups_of(const RowPush::Copy& copy) {
  return static_cast<uint32_t>(copy.row_groups) * static_cast<uint32_t>(copy.num_rows) *
         static_cast<uint32_t>(copy.num_blocks);
}

/// Copies groups [begin, end) of a copy with the threads of a CTA.
__device__ __forceinline__ void copy_groups(const RowPush::Copy& copy, uint32_t begin,
                                            uint32_t end) {
  const auto in_row = static_cast<uint32_t>(copy.row_groups);
  const auto in_block = static_cast<uint32_t>(copy.num_rows);
  const uint32_t rows_on = kThreads / in_row, groups_on = kThreads % in_row;
  uint32_t at = begin + threadIdx.x;
  uint32_t group = at % in_row, row = at / in_row, block = row / in_block;
  row -= block * in_block;
  while (at < end) {
    Group held[kAhead];
    Group* to[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      to[i] = nullptr;
      if (at >= end) continue;
      const int64_t from_row = copy.from_rows != nullptr
                                   ? copy.from_rows[row]
                                   : block * static_cast<uint32_t>(copy.from_block_rows) + row;
      const int64_t to_row = copy.to_rows != nullptr
                                 ? copy.to_rows[row]
                                 : block * static_cast<uint32_t>(copy.to_block_rows) + row;
      held[i] = reinterpret_cast<const Group*>(copy.from)[from_row * copy.from_pitch + group];
      to[i] = reinterpret_cast<Group*>(copy.to) + to_row * copy.to_pitch + group;
      at += kThreads;
      group += groups_on;
      row += rows_on;
      if (group >= in_row) {
        group -= in_row;
        ++row;
      }
      if (row >= in_block) {
        block += row / in_block;
        row %= in_block;
      }
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (to[i] != nullptr) *to[i] = held[i];
    }
  }
}

__device__ __forceinline__ uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

/// Copies this CTA's part of copies [first, last), split over `ctas` CTAs.
__device__ __forceinline__ void copy_part(const RowPush& p, int32_t first, int32_t last,
                                          uint32_t ctas) {
  uint32_t all = 0;
  for (int32_t c = first; c < last; ++c) all += groups_of(p.copies[c]);
  const uint32_t each = (all + ctas - 1) / ctas;
  const uint32_t begin = smaller(all, blockIdx.x * each), end = smaller(all, begin + each);
  uint32_t before = 0;
  for (int32_t c = first; c < last; ++c) {
    const uint32_t count = groups_of(p.copies[c]);
    const uint32_t from = begin > before ? begin : before, to = smaller(end, before + count);
    if (from < to) copy_groups(p.copies[c], from - before, to - before);
    before += count;
  }
}

/// True in thread 0 of the last of `ctas` CTAs to finish a piece: the whole piece is written.
__device__ __forceinline__ bool is_last_done(int32_t* num_done, int32_t ctas) {
  device::fence_system();
  __syncthreads();
  if (threadIdx.x != 0 || device::atomic_add(num_done, 1) != ctas - 1) return false;
  *num_done = 0;
  device::fence_system();
  return true;
}

__device__ __forceinline__ void publish(const RowPush& p, int32_t piece) {
  for (int32_t f = piece == 0 ? 0 : p.flag_ends[piece - 1]; f < p.flag_ends[piece]; ++f)
    device::publish_to_system(p.flags[f], p.value);
  if (p.own_flags[piece] != nullptr) device::publish_to_system(p.own_flags[piece], p.value);
}

__global__ void __launch_bounds__(kThreads, 1) push_rows(const __grid_constant__ RowPush p) {
  const auto ctas = static_cast<int32_t>(gridDim.x);
  copy_part(p, 0, p.ends[0], ctas);
  if (is_last_done(p.num_done, ctas)) publish(p, 0);
  const int32_t later_ctas = ctas < p.num_later_ctas ? ctas : p.num_later_ctas;
  if (static_cast<int32_t>(blockIdx.x) >= later_ctas) return;
  for (int32_t piece = 1; piece < p.num_pieces; ++piece) {
    copy_part(p, p.ends[piece - 1], p.ends[piece], later_ctas);
    if (is_last_done(p.num_done + piece, later_ctas)) publish(p, piece);
  }
}

constexpr bool is_whole(int64_t bytes) { return bytes % kGroupBytes == 0; }

/// A place for one more copy of the piece, with this number of groups; nullptr if there is no room,
/// or if rows or groups exceed 32 bits.
RowPush::Copy* next_copy(RowPush& push, int64_t groups, int64_t largest_row) {
  const int32_t piece = push.num_pieces;
  int32_t& end = push.ends[piece];
  if (end == RowPush::kMostCopies) return nullptr;
  for (int32_t c = piece == 0 ? 0 : push.ends[piece - 1]; c < end; ++c)
    groups += groups_of(push.copies[c]);
  if (std::max(groups, largest_row) >= INT32_MAX / 2) return nullptr;
  return &push.copies[end++];
}

}  // namespace

bool add_rows(RowPush& push, const ByteRows& rows) {
  if (!is_whole(reinterpret_cast<intptr_t>(rows.from)) ||
      !is_whole(reinterpret_cast<intptr_t>(rows.to)) || !is_whole(rows.from_pitch) ||
      !is_whole(rows.to_pitch) || !is_whole(rows.row_bytes))
    return false;
  RowPush::Copy* const copy =
      next_copy(push, rows.row_bytes / kGroupBytes * rows.num_rows * rows.num_blocks,
                std::max({rows.from_pitch, rows.to_pitch, rows.num_blocks * rows.from_block_rows,
                          rows.num_blocks * rows.to_block_rows}));
  if (copy == nullptr) return false;
  const auto narrow = [](int64_t value) { return static_cast<int32_t>(value); };
  *copy = {static_cast<const uint8_t*>(rows.from),
           static_cast<uint8_t*>(rows.to),
           narrow(rows.row_bytes / kGroupBytes),
           narrow(rows.num_rows),
           narrow(rows.num_blocks),
           narrow(rows.from_pitch / kGroupBytes),
           narrow(rows.to_pitch / kGroupBytes),
           narrow(rows.from_block_rows),
           narrow(rows.to_block_rows),
           nullptr,
           nullptr};
  return true;
}

bool add_rows(RowPush& push, const ListedRows& rows) {
  const ByteRows in_order{rows.from,      rows.from_pitch, rows.to, rows.to_pitch,
                          rows.row_bytes, rows.num_rows,   1,       rows.num_rows,
                          rows.num_rows};
  if (!add_rows(push, in_order)) return false;
  RowPush::Copy& copy = push.copies[push.ends[push.num_pieces] - 1];
  copy.from_rows = rows.from_rows;
  copy.to_rows = rows.to_rows;
  return true;
}

bool add_flag(RowPush& push, int32_t* flag) {
  int32_t& end = push.flag_ends[push.num_pieces];
  if (end == RowPush::kMostFlags) return false;
  push.flags[end++] = flag;
  return true;
}

void end_piece(RowPush& push) {
  const int32_t piece = push.num_pieces++;
  if (push.num_pieces == RowPush::kMostPieces) return;
  push.ends[push.num_pieces] = push.ends[piece];
  push.flag_ends[push.num_pieces] = push.flag_ends[piece];
}

void launch_row_push(const RowPush& push, Stream stream) {
  int64_t groups = 0;
  for (int32_t c = 0; c < push.ends[push.num_pieces - 1]; ++c) groups += groups_of(push.copies[c]);
  const int64_t most = resident_ctas(push_rows, kThreads, 0);
  const int64_t ctas = std::clamp<int64_t>((groups + kThreads - 1) / kThreads, 1, most);
  launch_kernel(push_rows, static_cast<int32_t>(ctas), kThreads, 0, stream, push);
}

}  // namespace cpscope::kernels
