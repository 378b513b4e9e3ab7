#pragma once

#include "kernels/device/device.h"
#include "kernels/device/device_rows.h"

#include <cstdint>

namespace cpscope::kernels {

/// Pieces of rows that a kernel writes to the memory of other devices, and of its own, and flags
/// that report the pieces to kernels that wait for them there. Used for data that is needed at
/// once, while multiprocessors are free: a copy engine costs the host some microseconds for each
/// copy, and cannot select rows. All multiprocessors write the first piece. A few continue with the
/// others, while other kernels begin on the rest.
struct RowPush {
  // Q, K and V of eight pieces to eight ranks, including itself.
  static constexpr int32_t kMostPieces = Arrivals::kMostPieces;
  static constexpr int32_t kMostCopies = 3 * 8 * kMostPieces, kMostFlags = 8 * kMostPieces;
  /// As ByteRows, in groups of 16 bytes; or selected rows of a block.
  struct Copy {
    const uint8_t* from = nullptr;
    uint8_t* to = nullptr;
    int32_t row_groups = 0, num_rows = 0, num_blocks = 0;
    int32_t from_pitch = 0, to_pitch = 0;  // groups
    int32_t from_block_rows = 0, to_block_rows = 0;
    const int32_t *from_rows = nullptr, *to_rows = nullptr;  // nullptr: in order
  };
  Copy copies[kMostCopies];
  int32_t ends[kMostPieces] = {};  // [piece] end index in `copies`
  int32_t num_pieces = 0;
  int32_t num_later_ctas = 16;           // that write later pieces
  int32_t value = 0;                     // of flags
  int32_t* flags[kMostFlags] = {};       // of other devices, set when a piece is written
  int32_t flag_ends[kMostPieces] = {};   // [piece] end index in `flags`
  int32_t* own_flags[kMostPieces] = {};  // [piece] set when the piece is written, unless nullptr
  int32_t* num_done = nullptr;           // [piece] 0 before and after
};

static_assert(sizeof(RowPush) <= 32'000, "what a launch may pass since CUDA 12.1 is 32764 bytes");

/// Rows in any order: row from_rows[i] goes to row to_rows[i]; nullptr: in their order.
struct ListedRows {
  const void* from = nullptr;
  int64_t from_pitch = 0;  // bytes
  const int32_t* from_rows = nullptr;
  void* to = nullptr;
  int64_t to_pitch = 0;
  const int32_t* to_rows = nullptr;
  int64_t row_bytes = 0;
  int64_t num_rows = 0;
};

/// Adds rows to the current piece. Returns false, and adds nothing, if the kernel does not support
/// them: rows must be aligned to 16 bytes and consist of whole groups of 16 bytes, and their number
/// is limited.
bool add_rows(RowPush& push, const ByteRows& rows);
bool add_rows(RowPush& push, const ListedRows& rows);
/// Adds a flag of another device, which is set when the current piece is written. Returns false if
/// there is no room.
bool add_flag(RowPush& push, int32_t* flag);
/// Ends the current piece; later additions belong to the next piece.
void end_piece(RowPush& push);

void launch_row_push(const RowPush& push, Stream stream);

}  // namespace cpscope::kernels
