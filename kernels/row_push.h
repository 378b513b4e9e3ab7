#pragma once

#include "kernels/device.h"

#include <cstdint>
#include <span>

namespace cpscope::kernels {

/// Rows that a kernel writes to the memory of other devices, and of its own, and flags that say so
/// to kernels that wait for them there: for what is small and wanted at once, while multiprocessors
/// are free. A copy engine needs the host for some microseconds for each of the copies.
struct RowPush {
  // Eight ranks' q, k and v in two stretches each; what a launch may pass is 4 KiB.
  static constexpr int32_t kMostCopies = 50, kMostFlags = 16;
  ByteRows copies[kMostCopies];
  int32_t num_copies = 0;
  int32_t* flags[kMostFlags] = {};  // set to `value` when all is written
  int32_t num_flags = 0;
  int32_t value = 0;
  int32_t* num_done = nullptr;  // 0 before and after
};

/// Can the kernel copy these rows? They must lie on 16 bytes and be of whole groups of 16 bytes.
bool can_push(const ByteRows& rows);

static_assert(sizeof(RowPush) <= 4096);

void launch_row_push(const RowPush& push, Stream stream);

}  // namespace cpscope::kernels
