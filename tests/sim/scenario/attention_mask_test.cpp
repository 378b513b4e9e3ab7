#include "sim/scenario/attention_mask.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope {
namespace {

using Rows = std::vector<std::vector<int64_t>>;

PaddedRows read_rows(const Rows& rows) {
  const Result<PaddedRows> read = read_attention_mask(rows);
  if (!read) {
    ADD_FAILURE() << to_text(read.error());
    return {};
  }
  return read.value();
}

/// What is wrong with the rows.
std::string fault_of(const Rows& rows) {
  const Result<PaddedRows> read = read_attention_mask(rows);
  return read ? "accepted" : read.error().complaints.front().what;
}

TEST(AttentionMask, FindsLengthsAndTheSideOfThePadding) {
  const PaddedRows left = read_rows({{0, 0, 1, 1, 1}, {1, 1, 1, 1, 1}, {0, 0, 0, 0, 1}});
  EXPECT_EQ(left.lengths, (std::vector<int64_t>{3, 5, 1}));
  EXPECT_EQ(left.seqlen, 5);
  EXPECT_EQ(left.pad_side, PadSide::left);
  const PaddedRows right = read_rows({{1, 1, 0}, {1, 1, 1}});
  EXPECT_EQ(right.lengths, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(right.pad_side, PadSide::right);
}

TEST(AttentionMask, TakesRowsWithoutPaddingOrWithoutTokensOnEitherSide) {
  EXPECT_EQ(read_rows({{1, 1}, {1, 1}}).pad_side, PadSide::right);
  EXPECT_EQ(read_rows({{0, 0}}).pad_side, PadSide::right);
  const PaddedRows mixed = read_rows({{0, 0, 0}, {1, 1, 1}, {0, 1, 1}});
  EXPECT_EQ(mixed.lengths, (std::vector<int64_t>{0, 3, 2}));
  EXPECT_EQ(mixed.pad_side, PadSide::left);
}

TEST(AttentionMask, NamesTheRowThatIsNoPaddedSequence) {
  EXPECT_EQ(fault_of({}), "the mask has no tokens");
  EXPECT_EQ(fault_of({{}}), "the mask has no tokens");
  EXPECT_EQ(fault_of({{1, 1}, {1, 1, 1}}),
            "rows of a mask have the same size: row 1 has 3 tokens, row 0 has 2");
  EXPECT_EQ(fault_of({{1, 1}, {1, -1}}), "a mask of tokens holds 0 and 1: row 1, column 1 is -1");
  EXPECT_EQ(fault_of({{1, 1, 1}, {1, 0, 1}}),
            "padding lies between the tokens of a row: row 1, column 1");
  EXPECT_EQ(fault_of({{1, 1, 1}, {0, 1, 0}}),
            "a row has padding on both sides: row 1 has its tokens in columns [1, 2) of 3");
  EXPECT_EQ(fault_of({{1, 1}, {1, 0}, {0, 1}}),
            "rows have padding on different sides: row 2 on the left, row 1 on the right");
}

}  // namespace
}  // namespace cpscope
