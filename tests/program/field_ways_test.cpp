// Which way of splitting the batches of scenarios/field/ is the fastest or the cheapest, with the
// sizes of the reports.
#include "sim/clock/candidates.h"
#include "tests/program/field_case.h"

#include <functional>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

/// Compares only the ways that `takes` takes.
Candidates compare_some(const FieldCase& field, const char* cluster,
                        const std::function<bool(const Parallel&)>& takes) {
  CandidateOptions options{.dispatch_chunks = {512, 1024}};
  options.refuse = [&](const Scenario& scenario) -> std::optional<Error> {
    if (takes(scenario.parallel)) return std::nullopt;
    return make_bad_input("left out");
  };
  return compare_candidates(field.plan().plan().scenario,
                            load_cluster(cluster, CPSCOPE_CLUSTERS).value(), options)
      .value();
}

const Candidate& find_way(const Candidates& comparison, const std::string& name) {
  for (const Candidate& candidate : comparison.candidates)
    if (candidate.name == name) return candidate;
  ADD_FAILURE() << "no candidate " << name;
  return comparison.candidates.front();
}

TEST(FieldWays, B07OfEqualWaysTheSimplestIsTaken) {
  const FieldCase whole = FieldCase("b07")
                              .with("batch.lengths", "[262144]")
                              .with("attention.heads", "64")
                              .with("attention.kv_heads", "4")
                              .with("attention.head_dim", "128");
  const Candidates ways = compare_some(whole, "h100x8", [](const Parallel& way) {
    return way.layout == LayoutKind::dual_chunk ||
           (way.comm_type == CommType::all_gather && way.layout == LayoutKind::lpt);
  });
  const Candidate &simple = find_way(ways, "all_gather, dual_chunk"),
                  &other = find_way(ways, "all_gather, lpt 1024");
  EXPECT_TRUE(is_as_good(simple, other) && is_as_good(other, simple));
  EXPECT_EQ(ways.candidates[static_cast<size_t>(ways.best)].name, simple.name);
  EXPECT_EQ(ways.candidates[static_cast<size_t>(ways.own)].name, "p2p, dual_chunk");
  expect_says(recommend(ways), "Take all_gather, dual_chunk: ");
}

TEST(FieldWays, B15UlyssesOfEightIsTheFastest) {
  const FieldCase whole =
      FieldCase("b15").with("batch.seqlen", "56700").with("attention.head_dim", "128");
  const Candidates ways = compare_some(
      whole, "h100x8", [](const Parallel& way) { return way.layout == LayoutKind::contiguous; });
  EXPECT_EQ(ways.best, ways.own);
  EXPECT_LT(find_way(ways, "a2a, contiguous").total_us(),
            find_way(ways, "a2a+p2p of 4, contiguous").total_us());
}

TEST(FieldWays, B18TheCheapestExchangeDependsOnTheKvHeads) {
  const auto bytes_of = [](const FieldCase& field) {
    return summarise(field.plan().plan()).forward_bytes.front();
  };
  for (const bool is_whole : {false, true}) {
    // 2 bytes of a head's row: of 32 tokens a rank, 16 long, or of 4096, 128 long.
    const int64_t row = is_whole ? 4096 * 128 * 2 : 32 * 16 * 2;
    FieldCase field("b18");
    if (is_whole) field = field.with("batch.lengths", "[32768]").with("attention.head_dim", "128");
    const FieldCase gathered = field.with("parallel.cp_comm_type", "\"all_gather\"");
    // q and out of 28 heads go away, and to each of 7 ranks one head of K and V.
    EXPECT_EQ(bytes_of(field), row * (2 * 28 + 2 * 7));
    EXPECT_EQ(bytes_of(gathered), row * 7 * 2 * 4);
    EXPECT_EQ(bytes_of(field.with("parallel.cp_comm_type", "\"p2p\"")), row * 7 * 2 * 4);
    const std::string all = "32";
    EXPECT_EQ(bytes_of(field.with("attention.kv_heads", all)), row * 4 * 28);
    EXPECT_EQ(bytes_of(gathered.with("attention.kv_heads", all)), row * 7 * 2 * 32);
  }
}

TEST(FieldWays, B30LocalBalanceIsFasterThanTheRing) {
  const FieldCase field("b30");
  const Candidates of_short = compare_some(field, "h100_ib", [](const Parallel&) { return true; });
  EXPECT_EQ(of_short.candidates[static_cast<size_t>(of_short.best)].name, "group_cast, contiguous");
  const std::vector<int64_t> lengths = {27193, 17105, 27738, 32728, 29049, 31005, 18471, 24557,
                                        25752, 27961, 25953, 24787, 27006, 27607, 20068, 29350,
                                        20461, 26167, 24311, 28586, 31781, 30480, 25548, 18091,
                                        23404, 17366, 16850, 25592, 28147, 21291, 30769, 21488};
  int64_t pairs = 0;
  for (const int64_t length : lengths) pairs += length * (length + 1) / 2;
  const FieldCase whole = field.with("batch.lengths", fmt::format("[{}]", fmt::join(lengths, ", ")))
                              .with("attention.heads", "32")
                              .with("attention.kv_heads", "8")
                              .with("attention.head_dim", "128");
  const CheckedPlan plan = whole.plan();
  EXPECT_EQ(summarise(plan.plan()).visible_pairs, 32 * pairs);
  EXPECT_EQ(32 * pairs, 335'745'883'136);
  const Candidates ways = compare_some(whole, "h100_ib", [](const Parallel& way) {
    return (way.comm_type == CommType::group_cast && way.layout == LayoutKind::lpt_local &&
            way.dispatch_chunk == 512) ||
           (way.comm_type == CommType::p2p && way.layout == LayoutKind::dual_chunk);
  });
  const Candidate& best = ways.candidates[static_cast<size_t>(ways.best)];
  EXPECT_EQ(best.name, "group_cast, lpt_local 512");
  EXPECT_GT(find_way(ways, "p2p, dual_chunk").total_us(), 2.5 * best.total_us());
  expect_says(recommend(ways), "longer: ");
  expect_says(recommend(ways), "ms more ");
}

}  // namespace
}  // namespace cpscope::tests
