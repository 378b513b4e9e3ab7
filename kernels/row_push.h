#pragma once

#include "kernels/attention_launch.h"
#include "kernels/device.h"

#include <cstdint>

namespace cpscope::kernels {

/// Pieces of rows that a kernel writes to the memory of other devices, and of its own, and flags
/// that say so to kernels that wait for them there: for what is wanted at once, while
/// multiprocessors are free. A copy engine needs the host for some microseconds for each of the
/// copies. All multiprocessors write the first piece; a few go on with the others, which other
/// kernels begin beside.
struct RowPush {
  // Seven receivers' q, k and v, in two stretches each, and five pieces of what stays; what a
  // launch may pass is 4 KiB.
  static constexpr int32_t kMostCopies = 76, kMostFlags = 16, kMostPieces = Arrivals::kMostPieces;
  /// As ByteRows, in groups of 16 bytes.
  struct Copy {
    const uint8_t* from = nullptr;
    uint8_t* to = nullptr;
    int32_t row_groups = 0, num_rows = 0, num_blocks = 0;
    int32_t from_pitch = 0, to_pitch = 0;  // groups
    int32_t from_block_rows = 0, to_block_rows = 0;
  };
  Copy copies[kMostCopies];
  int32_t ends[kMostPieces] = {};  // [piece] of copies
  int32_t num_pieces = 0;
  int32_t value = 0;                // of flags
  int32_t* flags[kMostFlags] = {};  // of other devices, set when the first piece is written
  int32_t num_flags = 0;
  int32_t* own_flags[kMostPieces] = {};  // [piece] set when it is written, if there is one
  int32_t* num_done = nullptr;           // [piece] 0 before and after
};

static_assert(sizeof(RowPush) <= 4096);

/// Adds rows to the piece that is not ended. False, and nothing added, where the kernel does not
/// take them: they must lie on 16 bytes and be of whole groups of 16 bytes, and there is room for
/// so many.
bool add_rows(RowPush& push, const ByteRows& rows);
/// What is added later is of the next piece.
void end_piece(RowPush& push);

void launch_row_push(const RowPush& push, Stream stream);

}  // namespace cpscope::kernels
