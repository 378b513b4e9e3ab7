#include "sim/scenario/attention_mask.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// The valid tokens [begin, end) of a row.
struct ValidRange {
  int64_t begin = 0, end = 0;
};

Result<ValidRange> find_valid_range(const std::vector<int64_t>& row, size_t number) {
  const auto other =
      std::find_if(row.begin(), row.end(), [](int64_t value) { return value != 0 && value != 1; });
  if (other != row.end())
    return make_bad_input(fmt::format("a mask of tokens holds 0 and 1: row {}, column {} is {}",
                                      number, other - row.begin(), *other),
                          "1 for a token, 0 for padding; a mask of pairs is read by --mask");
  const auto first = std::find(row.begin(), row.end(), 1);
  const auto last = std::find(row.rbegin(), row.rend(), 1).base();
  if (first == row.end()) return ValidRange{};
  if (const auto hole = std::find(first, last, 0); hole != last)
    return make_bad_input(
        fmt::format("padding lies between the tokens of a row: row {}, column {}", number,
                    hole - row.begin()),
        "the tokens of a sequence are consecutive in its slot; a mask of any other shape is "
        "attn_mask_type = \"slices\"");
  return ValidRange{first - row.begin(), last - row.begin()};
}

}  // namespace

Result<PaddedRows> read_attention_mask(std::span<const std::vector<int64_t>> rows) {
  if (rows.empty() || rows.front().empty())
    return make_bad_input("the mask has no tokens", "a list of 0 and 1 for each row of the batch");
  PaddedRows batch;
  batch.seqlen = std::ssize(rows.front());
  std::optional<size_t> left, right;  // the first row with padding on that side
  for (size_t number = 0; number < rows.size(); ++number) {
    const std::vector<int64_t>& row = rows[number];
    if (std::ssize(row) != batch.seqlen)
      return make_bad_input(
          fmt::format("rows of a mask have the same size: row {} has {} tokens, "
                      "row 0 has {}",
                      number, row.size(), batch.seqlen));
    const Result<ValidRange> found = find_valid_range(row, number);
    if (!found) return found.error();
    const auto [begin, end] = found.value();
    batch.lengths.push_back(end - begin);
    if (begin == end) continue;  // padding alone is on neither side
    const bool is_left = begin > 0, is_right = end < batch.seqlen;
    if (is_left && is_right)
      return make_bad_input(
          fmt::format("a row has padding on both sides: row {} has its tokens in columns [{}, {}) "
                      "of {}",
                      number, begin, end, batch.seqlen),
          "all padding of a batch is on one side, pad_side");
    if (is_left && !left) left = number;
    if (is_right && !right) right = number;
  }
  if (left && right)
    return make_bad_input(
        fmt::format("rows have padding on different sides: row {} on the left, row {} on the right",
                    *left, *right),
        "all padding of a batch is on one side, pad_side");
  batch.pad_side = left ? PadSide::left : PadSide::right;
  return batch;
}

}  // namespace cpscope
