#pragma once

#include "sim/base/result.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace cpscope {

/// Keys [begin, end) that one row sees.
struct MaskRun {
  int64_t begin = 0;
  int64_t end = 0;

  friend bool operator==(const MaskRun&, const MaskRun&) = default;
};

/// A mask as a file has it: the keys of every row. A block mask has rows and columns of tiles.
struct MaskRows {
  int64_t rows = 0;
  int64_t columns = 0;  // where has_all_columns is false: one more than the largest that is seen
  bool has_all_columns = true;
  int64_t row_tile = 1;     // queries of a row
  int64_t column_tile = 1;  // keys of a column
  /// Replaces `runs` by those of a row: ascending, apart from each other, in columns.
  std::function<void(int64_t row, std::vector<MaskRun>& runs)> read;

  /// True if that many queries and keys can have this mask.
  bool fits(int64_t queries, int64_t keys) const;
};

/// Reads a mask file by its content:
///   .npy: a matrix of bool or uint8, [queries, keys] (mask_matrix.h)
///   {"keys": [[...], ...]}: the keys of every query in any order (top-k); -1 is no key
///   {"kv_num_blocks": [...], "kv_indices": [[...], ...], "block_size": [128, 128]}: PyTorch's
///     BlockMask; block_size is [queries, keys] or one number, default 128. Its leading dimensions
///     must be 1. With full_kv_num_blocks and full_kv_indices, as create_block_mask makes them,
///     kv_num_blocks counts blocks that are visible in part: they must be 0, because the file does
///     not say which part. Source: torch.nn.attention.flex_attention.BlockMask.
/// `path` names the file in errors.
Result<MaskRows> parse_mask_rows(std::string bytes, const std::string& path);

/// Reads the file, at most 260 MiB, and parses it. Errors of a file that cannot be read have no
/// `where`.
Result<MaskRows> load_mask_rows(const std::string& path);

/// Slices, and how many pairs of a query and a key they make visible.
struct MaskCut {
  std::vector<MaskSlice> slices;  // by q0, then k0; no two share a cell
  int64_t pairs = 0;
};

/// The slices of a mask that a batch has: the whole batch, or every sequence alike, or `sequence`
/// alone if that is not -1 (the others are causal). Runs that rows share, or that begin or end one
/// key further in each row, are one slice. Errors (bad_input, without a place): the mask fits
/// neither, a query sees a key of another sequence, or more slices than kMaxFileSlices.
Result<MaskCut> cut_mask(const MaskRows& mask, const Batch& batch, int64_t sequence);

}  // namespace cpscope
