#include "sim/run/record/row_axes.h"

#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

// Value (row, head, lane) of every tensor below is row*100 + head*10 + lane.
constexpr int64_t kHeads = 3, kLanes = 2;

std::vector<double> in_rows(int64_t rows, int64_t lanes) {
  std::vector<double> values;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t head = 0; head < kHeads; ++head) {
      for (int64_t lane = 0; lane < lanes; ++lane)
        values.push_back(static_cast<double>(row * 100 + head * 10 + lane));
    }
  }
  return values;
}

/// A tensor whose dimension i counts `axes[i]` (b, s, t, h, d); `row_of`(b, s) is the row.
template <class RowOf>
Tensor make(const std::string& axes, std::vector<int64_t> shape, RowOf row_of) {
  Tensor tensor{"out", std::move(shape), Dtype::fp32, {}};
  std::vector<int64_t> at(tensor.shape.size(), 0);
  for (int64_t i = 0; i < tensor.size(); ++i) {
    int64_t rest = i, b = 0, s = 0, h = 0, d = 0;
    for (size_t axis = at.size(); axis-- > 0;) {
      at[axis] = rest % tensor.shape[axis];
      rest /= tensor.shape[axis];
    }
    for (size_t axis = 0; axis < at.size(); ++axis) {
      if (axes[axis] == 'b') b = at[axis];
      if (axes[axis] == 's' || axes[axis] == 't') s = at[axis];
      if (axes[axis] == 'h') h = at[axis];
      if (axes[axis] == 'd') d = at[axis];
    }
    tensor.values.push_back(static_cast<double>(row_of(b, s) * 100 + h * 10 + d));
  }
  return tensor;
}

constexpr RowExtents kTwoSequences{
    .rows = 10, .ranks = 1, .sequences = 2, .heads = kHeads, .lanes = kLanes};

TEST(RowAxes, ReadEveryFormatOfTheFieldToTheSameRows) {
  const auto of_sequence = [](int64_t b, int64_t s) { return b * 5 + s; };
  const std::pair<std::string, std::vector<int64_t>> cases[] = {{"thd", {10, 3, 2}},
                                                                {"1thd", {1, 10, 3, 2}},
                                                                {"bshd", {2, 5, 3, 2}},
                                                                {"sbhd", {5, 2, 3, 2}},
                                                                {"bhsd", {2, 3, 5, 2}}};
  for (const auto& [axes, shape] : cases) {
    const Result<RowsRead> read =
        read_rows(make(axes, shape, of_sequence), kTwoSequences, RowChoices{});
    ASSERT_TRUE(read.ok()) << axes << ": " << to_text(read.error());
    EXPECT_EQ(read.value().values, in_rows(10, kLanes)) << axes << " as " << read.value().axes;
  }
}

TEST(RowAxes, ReadHeadsAndLanesInOneDimension) {
  Tensor flat{"out", {10, 6}, Dtype::fp32, in_rows(10, kLanes)};
  EXPECT_EQ(read_rows(flat, kTwoSequences, {}).value().values, in_rows(10, kLanes));
  flat.shape = {2, 5, 6};
  const RowsRead read = read_rows(flat, kTwoSequences, {}).value();
  EXPECT_EQ(read.values, in_rows(10, kLanes));
  EXPECT_EQ(read.axes, "[sequences, positions, heads*head_dim]");
}

TEST(RowAxes, ReadRanksThatWereJoinedAlongSequencesOrAlongPositions) {
  // Two ranks with two sequences of five positions each: rows are ordered by rank, sequence,
  // position.
  const RowExtents extents{
      .rows = 20, .ranks = 2, .sequences = 2, .heads = kHeads, .lanes = kLanes};
  const Tensor stacked = make("bshd", {4, 5, 3, 2}, [](int64_t b, int64_t s) { return b * 5 + s; });
  EXPECT_EQ(read_rows(stacked, extents, {}).value().values, in_rows(20, kLanes));
  const Tensor joined =
      make("bshd", {2, 10, 3, 2}, [](int64_t b, int64_t s) { return s / 5 * 10 + b * 5 + s % 5; });
  const RowsRead read = read_rows(joined, extents, {}).value();
  EXPECT_EQ(read.values, in_rows(20, kLanes));
  EXPECT_NE(read.axes.find("joined along positions"), std::string::npos) << read.axes;
}

TEST(RowAxes, ReadLseWithHeadsOnEitherSide) {
  RowExtents extents = kTwoSequences;
  extents.lanes = 0;
  const auto of_sequence = [](int64_t b, int64_t s) { return b * 5 + s; };
  const std::pair<std::string, std::vector<int64_t>> cases[] = {
      {"th", {10, 3}},    {"ht", {3, 10}},    {"th1", {10, 3, 1}},    {"bsh", {2, 5, 3}},
      {"bhs", {2, 3, 5}}, {"sbh", {5, 2, 3}}, {"bhs1", {2, 3, 5, 1}}, {"1ht", {1, 3, 10}}};
  for (const auto& [axes, shape] : cases) {
    const Result<RowsRead> read = read_rows(make(axes, shape, of_sequence), extents, {});
    ASSERT_TRUE(read.ok()) << axes << ": " << to_text(read.error());
    EXPECT_EQ(read.value().values, in_rows(10, 1)) << axes << " as " << read.value().axes;
  }
}

TEST(RowAxes, RefuseToGuessBetweenTokensAndHeads) {
  const RowExtents square{.rows = 3, .ranks = 1, .sequences = 1, .heads = 3, .lanes = 0};
  const Tensor lse{"lse", {3, 3}, Dtype::fp32, in_rows(3, 1)};
  const Result<RowsRead> read = read_rows(lse, square, {});
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(to_text(read.error()),
            "tensor \"lse\" can be read in several ways: [3, 3] as [tokens, heads] or [heads, "
            "tokens]; say --lse-layout tokens_heads or heads_tokens (or --format)");
  RowChoices choices{.lse_layout = LseLayout::tokens_heads};
  EXPECT_EQ(read_rows(lse, square, choices).value().values, in_rows(3, 1));
  choices.lse_layout = LseLayout::heads_tokens;
  EXPECT_EQ(read_rows(lse, square, choices).value().values[1], 100.0);
}

TEST(RowAxes, TakeTheScenariosFormatWhereSeveralFit) {
  // Two sequences of two positions: bshd and sbhd have one shape.
  const RowExtents extents{.rows = 4, .ranks = 1, .sequences = 2, .heads = 3, .lanes = 2};
  const Tensor out{"out", {2, 2, 3, 2}, Dtype::fp32, in_rows(4, 2)};
  EXPECT_FALSE(read_rows(out, extents, {}).ok());
  RowChoices choices{.preferred = RowFormat::bshd};
  EXPECT_EQ(read_rows(out, extents, choices).value().values, in_rows(4, 2));
  choices.preferred = RowFormat::sbhd;
  EXPECT_EQ(read_rows(out, extents, choices).value().values[6], 200.0) << "row 1 is sequence 0";
  choices.format = RowFormat::bshd;
  EXPECT_EQ(read_rows(out, extents, choices).value().values, in_rows(4, 2));
}

TEST(RowAxes, NameTheShapeThatFitsNothing) {
  const Tensor out{"out", {9, 3, 2}, Dtype::fp32, in_rows(9, 2)};
  EXPECT_EQ(to_text(read_rows(out, kTwoSequences, {}).error()),
            "tensor \"out\" has a shape that fits nothing: [9, 3, 2]; the scenario's batch gives "
            "[10, 3, 2]");
  RowExtents uneven = kTwoSequences;
  uneven.sequences = 0;
  const Tensor square{"out", {3, 5, 3, 2}, Dtype::fp32, in_rows(15, 2)};
  EXPECT_EQ(
      to_text(read_rows(square, uneven, {.format = RowFormat::bshd}).error()),
      "tensor \"out\" has a shape that fits nothing: [3, 5, 3, 2]; the scenario's batch gives "
      "bshd with 10 tokens in one or more rows of a batch, 3 heads");
}

TEST(RowAxes, ReadDocumentsPackedIntoTheRowsOfABatch) {
  // Two rows of five tokens, with any number of documents in each.
  RowExtents extents = kTwoSequences;
  const auto of_row = [](int64_t b, int64_t s) { return b * 5 + s; };
  for (const int64_t sequences : {0, 4}) {
    extents.sequences = sequences;
    for (const RowFormat format : {RowFormat::bshd, RowFormat::sbhd, RowFormat::bhsd}) {
      const std::string axes(to_name(format));
      const std::vector<int64_t> shape =
          format == RowFormat::bshd   ? std::vector<int64_t>{2, 5, 3, 2}
          : format == RowFormat::sbhd ? std::vector<int64_t>{5, 2, 3, 2}
                                      : std::vector<int64_t>{2, 3, 5, 2};
      const Result<RowsRead> read =
          read_rows(make(axes, shape, of_row), extents, {.format = format});
      ASSERT_TRUE(read.ok()) << axes << ": " << to_text(read.error());
      EXPECT_EQ(read.value().values, in_rows(10, kLanes)) << axes << " as " << read.value().axes;
    }
  }
  extents.sequences = 0;
  const Tensor square = make("bshd", {2, 5, 3, 2}, of_row);
  EXPECT_FALSE(read_rows(square, extents, {}).ok()) << "it may be sbhd with a batch of five";
  const RowChoices equal_sequences{.format = RowFormat::bshd, .preferred = RowFormat::bshd};
  EXPECT_FALSE(read_rows(square, extents, equal_sequences).ok()) << "not packed";
}

}  // namespace
}  // namespace cpscope::tests
