#pragma once

#include "sim/base/result.h"
#include "sim/run/tensor.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

/// The dimensions of a tensor of tokens, outermost first: thd [tokens, heads, head_dim], bshd and
/// sbhd as in TransformerEngine, bhsd as in PyTorch's scaled_dot_product_attention. In each of the
/// first three, heads and head_dim may be one dimension.
enum class RowFormat { thd, bshd, sbhd, bhsd };

/// Position of the heads of lse: after the tokens (contract) or before them (FlashAttention's
/// varlen calls, TransformerEngine's thd).
enum class LseLayout { tokens_heads, heads_tokens };

std::string_view to_name(RowFormat value);
std::string_view to_name(LseLayout value);
std::optional<RowFormat> find_row_format(std::string_view name);
std::optional<LseLayout> find_lse_layout(std::string_view name);

/// The sizes that a tensor of one name must have.
struct RowExtents {
  int64_t rows = 0;   // of all the ranks that the tensor holds
  int64_t ranks = 1;  // local buffers in it, one after another, of equal size where needed
  // Of equal slots in each local buffer; 0: they are not equal. A batch of packed documents may
  // have another number of rows (b), one after another in the buffer: its shape says how many.
  int64_t sequences = 0;
  int64_t heads = 0;
  int64_t lanes = 0;  // elements of a head; 0: the tensor is lse, which has none
};

/// What is known about a tensor's dimensions in addition to their extents.
struct RowChoices {
  std::optional<RowFormat> format = {};
  std::optional<LseLayout> lse_layout = {};
  // Used when several formats fit and none is chosen: the format of the scenario.
  RowFormat preferred = RowFormat::thd;
};

/// A tensor as rows, and how it was read.
struct RowsRead {
  std::vector<double> values;  // [row, head, element], rows in the order of the ranks' buffers
  std::string axes;            // "[tokens, heads, head_dim]"
};

/// Reads a tensor of tokens in the only way that its shape and the choices allow. Errors
/// (bad_input): no format fits the shape, or several fit that would read other numbers.
Result<RowsRead> read_rows(Tensor tensor, const RowExtents& extents, const RowChoices& choices);

}  // namespace cpscope
