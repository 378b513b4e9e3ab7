#pragma once

#include "sim/base/result.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <span>
#include <vector>

namespace cpscope {

/// The sequences of a padded batch, one a row.
struct PaddedRows {
  std::vector<int64_t> lengths;  // [row] valid tokens
  int64_t seqlen = 0;            // tokens of a row, padding included
  PadSide pad_side = PadSide::right;
};

/// What a mask of the tokens of a batch says, [batch, seqlen] of 0 (padding) and 1, as the
/// attention_mask of Hugging Face tokenizers. Without padding, pad_side is right. Errors
/// (bad_input) name the row: no tokens, rows of different size, another number, padding between or
/// on both sides of the tokens of a row, padding on different sides of two rows.
Result<PaddedRows> read_attention_mask(std::span<const std::vector<int64_t>> rows);

}  // namespace cpscope
