#include "sim/plan/plan_summary.h"
#include "tests/sim/plan/plan_cases.h"

#include <gtest/gtest.h>

// Visible pairs by rank, imbalance and the necessary share of KV traffic, from closed forms and
// published examples. Causal, one head, ring.

namespace cpscope::tests {
namespace {

constexpr double kDigits = 0.000501;       // for numbers printed with three digits
constexpr double kFourDigits = 0.0000501;  // with four digits

struct Balance {
  std::vector<int64_t> pairs_by_rank;
  double rank_max_over_mean;
  double critical_path_over_ideal;
};

void expect_balance(const Scenario& scenario, const Balance& expected, double tolerance = kDigits) {
  const PlanSummary summary = summarise(plan_of(scenario));
  if (!expected.pairs_by_rank.empty()) {
    EXPECT_EQ(summary.pairs_by_rank, expected.pairs_by_rank) << show(scenario);
  }
  EXPECT_NEAR(summary.rank_max_over_mean, expected.rank_max_over_mean, tolerance) << show(scenario);
  EXPECT_NEAR(summary.critical_path_over_ideal, expected.critical_path_over_ideal, tolerance)
      << show(scenario);
}

struct SequenceOnRanks {
  int64_t tokens;
  int32_t ranks;
  double contiguous, stripe;  // max/mean
};

constexpr SequenceOnRanks kOneSequence[] = {
    {128, 2, 1.4961, 1.0078}, {256, 4, 1.7471, 1.0117}, {512, 8, 1.8733, 1.0136}};

TEST(GoldenBalance, OfAContiguousSequence) {
  for (const SequenceOnRanks& one : kOneSequence) {
    const int64_t length = one.tokens / one.ranks;
    std::vector<int64_t> pairs;
    for (int64_t r = 0; r < one.ranks; ++r)
      pairs.push_back(r * length * length + length * (length + 1) / 2);
    expect_balance(make_case({one.tokens}, one.ranks, LayoutKind::contiguous),
                   {pairs, one.contiguous, one.contiguous}, kFourDigits);
  }
}

TEST(GoldenBalance, OfAZigzagSequenceIsExactlyEvenInEveryStep) {
  for (const SequenceOnRanks& one : kOneSequence) {
    const int64_t half = one.tokens / (2 * one.ranks);
    const std::vector<int64_t> pairs(static_cast<size_t>(one.ranks),
                                     2 * one.ranks * half * half + half);
    for (const LayoutKind layout : {LayoutKind::dual_chunk, LayoutKind::dual_chunk_packed}) {
      const Scenario scenario = make_case({one.tokens}, one.ranks, layout);
      expect_balance(scenario, {pairs, 1.0, 1.0}, 0.0);
      const PlanSummary summary = summarise(plan_of(scenario));
      for (size_t step = 1; step < summary.pairs_by_step_rank.size(); ++step) {
        for (size_t rank = 0; rank < pairs.size(); ++rank) {
          EXPECT_EQ(summary.pairs_by_step_rank[step][rank], 2 * half * half)
              << "step " << step << ", rank " << rank << "\n"
              << show(scenario);
        }
      }
    }
  }
}

TEST(GoldenBalance, OfAStripedSequence) {
  for (const SequenceOnRanks& one : kOneSequence) {
    const int64_t length = one.tokens / one.ranks;
    std::vector<int64_t> pairs;
    for (int64_t r = 0; r < one.ranks; ++r)
      pairs.push_back((r + 1) * length * (length + 1) / 2 +
                      (one.ranks - 1 - r) * length * (length - 1) / 2);
    // In every step the busiest rank has its diagonal.
    const double expected =
        static_cast<double>(one.ranks * (length + 1)) / static_cast<double>(one.ranks * length + 1);
    EXPECT_NEAR(expected, one.stripe, kFourDigits);
    const Scenario scenario = make_case({one.tokens}, one.ranks, LayoutKind::striped);
    const PlanSummary summary = summarise(plan_of(scenario));
    EXPECT_EQ(summary.pairs_by_rank, pairs) << show(scenario);
    EXPECT_NEAR(summary.rank_max_over_mean, one.stripe, kFourDigits) << show(scenario);
    for (const std::vector<int64_t>& step : summary.pairs_by_step_rank) {
      for (const int64_t cost : step) {
        EXPECT_TRUE(cost == length * (length + 1) / 2 || cost == length * (length - 1) / 2)
            << cost << "\n"
            << show(scenario);
      }
    }
  }
}

TEST(GoldenBalance, OfThreePackedDocuments) {
  const auto packed = [](LayoutKind layout) { return make_case({128, 64, 320}, 4, layout); };
  expect_balance(packed(LayoutKind::contiguous), {{8256, 4160, 16448, 32832}, 2.129, 2.129});
  expect_balance(packed(LayoutKind::dual_chunk_packed),
                 {{20544, 20544, 12352, 8256}, 1.332, 2.129});
  expect_balance(packed(LayoutKind::striped), {{15232, 15360, 15488, 15616}, 1.012, 1.012});
  expect_balance(packed(LayoutKind::dual_chunk), {{15424, 15424, 15424, 15424}, 1.0, 1.0});
}

TEST(GoldenBalance, OfEightEqualDocuments) {
  const auto packed = [](LayoutKind layout) {
    return make_case({64, 64, 64, 64, 64, 64, 64, 64}, 8, layout);
  };
  const std::vector<int64_t> equal(8, 64 * 65 / 2);
  expect_balance(packed(LayoutKind::dual_chunk_packed), {equal, 1.0, 1.492});
  expect_balance(packed(LayoutKind::dual_chunk), {equal, 1.0, 1.0});
  const PlanSummary striped = summarise(plan_of(packed(LayoutKind::striped)));
  EXPECT_NEAR(striped.critical_path_over_ideal, 1.108, kDigits);
}

TEST(GoldenBalance, OfPyTorchsTwoDocuments) {
  expect_balance(make_case({4, 12}, 2, LayoutKind::dual_chunk), {{44, 44}, 1.0, 1.0});
  EXPECT_EQ(summarise(plan_of(make_case({4, 12}, 2, LayoutKind::dual_chunk_packed))).pairs_by_rank,
            (std::vector<int64_t>{52, 36}));
}

TEST(GoldenBalance, OfPyTorchsDocumentMajorOrderShowsItsFault) {
  // Each document in head-tail order, one document after another, the list cut in two.
  Scenario scenario = make_case({4, 12}, 2, LayoutKind::indices);
  scenario.parallel.imported.ranks = {{0, 3, 1, 2, 4, 5, 6, 13}, {14, 15, 7, 8, 9, 10, 11, 12}};
  scenario.parallel.imported.kv_ranks = scenario.parallel.imported.ranks;
  const PlanSummary summary = summarise(plan_of(scenario));
  EXPECT_EQ(summary.pairs_by_rank, (std::vector<int64_t>{26, 62}));
  EXPECT_NEAR(summary.rank_max_over_mean, 1.409, kDigits);
}

TEST(GoldenBalance, OfPackedZigzagLeavesFiveOfTwelveRemoteCellsEmpty) {
  const PlanSummary summary =
      summarise(plan_of(make_case({128, 64, 320}, 4, LayoutKind::dual_chunk_packed)));
  int64_t empty = 0;
  for (size_t step = 1; step < summary.pairs_by_step_rank.size(); ++step) {
    for (const int64_t pairs : summary.pairs_by_step_rank[step]) empty += pairs == 0 ? 1 : 0;
  }
  EXPECT_EQ(empty, 5);
}

double necessary_share(const Scenario& scenario) {
  const PlanSummary summary = summarise(plan_of(scenario));
  return static_cast<double>(summary.kv_bytes_necessary) /
         static_cast<double>(summary.kv_bytes_moved);
}

TEST(GoldenNecessaryKv, IsHalfOfTheRingForAContiguousSequence) {
  for (const SequenceOnRanks& one : kOneSequence)
    EXPECT_EQ(necessary_share(make_case({one.tokens}, one.ranks, LayoutKind::contiguous)), 0.5);
}

TEST(GoldenNecessaryKv, IsThreeQuartersOfTheRingForZigzag) {
  for (const SequenceOnRanks& one : kOneSequence)
    EXPECT_EQ(necessary_share(make_case({one.tokens}, one.ranks, LayoutKind::dual_chunk)), 0.75);
}

TEST(GoldenNecessaryKv, IsThreeQuartersForPerDocumentZigzagOfAnyPacking) {
  EXPECT_EQ(necessary_share(make_case({128, 64, 320}, 4, LayoutKind::dual_chunk)), 0.75);
  EXPECT_EQ(necessary_share(make_case({16, 16, 480, 64}, 4, LayoutKind::dual_chunk)), 0.75);
}

TEST(GoldenNecessaryKv, IsAlmostAllOfTheRingForStripes) {
  const double share = necessary_share(make_case({512}, 8, LayoutKind::striped));
  EXPECT_GT(share, 0.99);
  EXPECT_LE(share, 1.0);
}

TEST(GoldenNecessaryKv, OfZigzagByRankIsTheRestBeforeItsLaterChunk) {
  // Rank r needs (2P-2-r) half-chunks that it does not own.
  const int64_t ranks = 4, half = 16;
  Scenario scenario =
      make_case({2 * ranks * half}, 4, LayoutKind::dual_chunk, CommType::group_cast);
  const Plan plan = plan_of(scenario);
  IdVector<RankId, int64_t> received(plan.home.size(), 0);
  for (const TransferItem& item : plan.forward.transfers)
    received[item.dst] += plan.rows(item.from_rows);
  for (const RankId rank : received.ids())
    EXPECT_EQ(received[rank], (2 * ranks - 2 - to_index(rank)) * half) << "rank " << to_index(rank);
}

}  // namespace
}  // namespace cpscope::tests
