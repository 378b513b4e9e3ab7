#pragma once

#include "sim/base/result.h"

#include <cstdint>
#include <string>

namespace cpscope {

/// More rows or columns of a mask matrix than this are refused: its file would exceed 256 MiB.
inline constexpr int64_t kMaxMatrixSide = 16'384;

/// A matrix of bytes 0 and 1: which key (column) each query (row) sees.
struct MaskMatrix {
  int64_t rows = 0;
  int64_t columns = 0;
  bool is_column_major = false;  // NumPy's fortran_order
  std::string bytes;             // the file
  size_t first = 0;              // offset of the first cell in it

  bool is_set(int64_t row, int64_t column) const {
    const int64_t at = is_column_major ? column * rows + row : row * columns + column;
    return bytes[first + static_cast<size_t>(at)] != 0;
  }
};

/// Reads the bytes of a .npy file (numpy.lib.format, versions 1 to 3) of bool, uint8 or int8 with
/// two dimensions; dimensions of 1 before these two are dropped ([1, 1, queries, keys]). Errors
/// have where = "path:1:1": another type or shape, a cell that is neither 0 nor 1, a side above
/// kMaxMatrixSide, or more or fewer bytes than the shape says.
Result<MaskMatrix> parse_mask_matrix(std::string bytes, const std::string& path);

}  // namespace cpscope
