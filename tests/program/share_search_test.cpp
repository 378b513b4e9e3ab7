// Shares of dk and dv that are lost among roundings: what one rank's queries give to another's
// keys.

#include "sim/run/grade/share_search.h"

#include "sim/run/grade/case.h"
#include "sim/run/grade/sample.h"
#include "tests/program/walker_toolbox.h"

#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

constexpr int32_t kRanksOfRing = 64;
constexpr int64_t kTokensOfRing = 1024;

/// One causal sequence on a long ring whose dk and dv are rounded to bf16 at every hop.
Scenario long_ring() {
  Scenario scenario;
  scenario.attention.heads = 2;
  scenario.attention.kv_heads = 1;
  scenario.attention.head_dim_qk = scenario.attention.head_dim_v = 16;
  scenario.batch.lengths = scenario.batch.kv_lengths = scenario.batch.slots =
      scenario.batch.kv_slots = {kTokensOfRing};
  scenario.parallel.cp_size = kRanksOfRing;
  scenario.numerics.dtype = Dtype::bf16;
  return scenario;
}

/// A right run of it, and what is said of answers made of its own.
class LongRing {
 public:
  LongRing() : toolbox_(make_walker_toolbox()) {
    outcome_ = run_case(toolbox_, long_ring(), {.keeps_exact = true});
  }
  const Plan& plan() const { return outcome_.plan->plan(); }
  const CaseOutcome& outcome() const { return outcome_; }
  Answer answer() const { return outcome_.output.answer; }

  /// What the rank's queries give to all keys.
  Answer shares_of(int32_t rank) const {
    JudgedRows pairs;
    for (const TokenRun& run : plan().list(plan().q_lists[RankId{rank}]))
      for (int64_t token = run.begin; token < run.end; token += run.stride)
        pairs.query_tokens.push_back(token);
    pairs.key_tokens.resize(kTokensOfRing);
    std::iota(pairs.key_tokens.begin(), pairs.key_tokens.end(), int64_t{0});
    return toolbox_.oracle
        .shares(plan().scenario, outcome_.inputs, outcome_.exact, pairs, RunControl())
        .value();
  }

  /// The answer with `times` of what `from`'s queries give to `to`'s keys added.
  Answer add_share(int32_t from, int32_t to, double times) const {
    Answer answer = this->answer();
    const Answer shares = shares_of(from);
    for (const auto member : {&Answer::dk, &Answer::dv}) {
      Tensor& tensor = answer.*member;
      const int64_t width = tensor.shape[1] * tensor.shape[2];
      for (const TokenRun& run : plan().list(plan().kv_lists[RankId{to}]))
        for (int64_t at = run.begin * width; at < run.end * width; ++at)
          tensor.values[static_cast<size_t>(at)] +=
              times * (shares.*member).values[static_cast<size_t>(at)];
    }
    return answer;
  }

  /// Some pair of ranks whose share is small beside what the keys get from all.
  std::pair<int32_t, int32_t> find_small_share() const {
    std::pair<int32_t, int32_t> smallest;
    double least = HUGE_VAL;
    for (int32_t from = 0; from < kRanksOfRing; from += 16) {
      const Answer shares = shares_of(from);
      for (int32_t to = 0; to < kRanksOfRing; ++to) {
        const double part = length_of(shares.dk, to) / length_of(outcome_.exact.dk, to);
        if (to == from || part == 0 || part >= least) continue;
        least = part;
        smallest = {from, to};
      }
    }
    return smallest;
  }

  /// What the search alone says of an answer: budgets have seen the right one.
  Grade search(const Answer& answer) const {
    Grade grade = outcome_.grade;
    EXPECT_FALSE(search_shares(toolbox_, plan(), outcome_.inputs, answer,
                               {.exact = outcome_.exact, .given = outcome_.exact}, grade));
    return grade;
  }
  Grade grade_few(const Answer& answer) const {
    return std::move(grade_sample(toolbox_, plan(), outcome_.inputs, answer, {.rows = 256}))
        .value()
        .grade;
  }

 private:
  /// Of the rank's rows.
  double length_of(const Tensor& tensor, int32_t rank) const {
    const int64_t width = tensor.shape[1] * tensor.shape[2];
    double sum = 0;
    for (const TokenRun& run : plan().list(plan().kv_lists[RankId{rank}]))
      for (int64_t at = run.begin * width; at < run.end * width; ++at)
        sum += std::pow(tensor.values[static_cast<size_t>(at)], 2);
    return std::sqrt(sum);
  }

  Toolbox toolbox_;
  CaseOutcome outcome_;
};

const LongRing& ring() {
  static const LongRing made;
  return made;
}

void expect_share(const Grade& grade, int32_t from, int32_t to, double times) {
  EXPECT_EQ(grade.judgement(), Judgement::fail);
  for (const TensorGrade& tensor : grade.tensors) {
    const bool is_of_keys = tensor.name == "dk" || tensor.name == "dv";
    EXPECT_EQ(tensor.share.has_value(), is_of_keys) << tensor.name;
    if (!tensor.share) continue;
    EXPECT_EQ(tensor.share->query_rank, from) << tensor.name;
    EXPECT_EQ(tensor.share->key_rank, to) << tensor.name;
    EXPECT_NEAR(tensor.share->times, times, 0.5) << tensor.name;
  }
}

TEST(ShareSearch, SharesOfAllRanksAddUpToTheGradient) {
  Answer sum = ring().shares_of(0);
  for (int32_t rank = 1; rank < kRanksOfRing; ++rank) {
    const Answer share = ring().shares_of(rank);
    for (size_t i = 0; i < sum.dk.values.size(); ++i) sum.dk.values[i] += share.dk.values[i];
    for (size_t i = 0; i < sum.dv.values.size(); ++i) sum.dv.values[i] += share.dv.values[i];
  }
  const Answer& exact = ring().outcome().exact;
  for (size_t i = 0; i < sum.dk.values.size(); ++i)
    ASSERT_NEAR(sum.dk.values[i], exact.dk.values[i], 1e-12);
  for (size_t i = 0; i < sum.dv.values.size(); ++i)
    ASSERT_NEAR(sum.dv.values[i], exact.dv.values[i], 1e-12);
}

TEST(ShareSearch, FindsNothingInARightAnswer) {
  ASSERT_TRUE(can_hide_shares(ring().plan()));
  EXPECT_EQ(ring().outcome().grade.judgement(), Judgement::pass);
  EXPECT_EQ(ring().grade_few(ring().answer()).judgement(), Judgement::pass);
}

TEST(ShareSearch, NamesTheRanksOfAShareThatIsMissing) {
  const auto [from, to] = ring().find_small_share();
  Grade grade = ring().search(ring().add_share(from, to, -1.0));
  expect_share(grade, from, to, -1.0);
  const std::string said = describe_failure(*grade.find("dk"));
  EXPECT_NE(said.find(fmt::format(
                "the contribution of rank {}'s queries to rank {}'s keys is added", from, to)),
            std::string::npos)
      << said;
}

TEST(ShareSearch, NamesTheRanksOfAShareThatIsThereTwice) {
  const auto [from, to] = ring().find_small_share();
  expect_share(ring().search(ring().add_share(from, to, 1.0)), from, to, 1.0);
}

TEST(ShareSearch, IsPartOfASampledVerdict) {
  const auto [from, to] = ring().find_small_share();
  EXPECT_EQ(ring().grade_few(ring().add_share(from, to, -1.0)).judgement(), Judgement::fail);
}

TEST(ShareSearch, LooksOnlyWhereSharesCanHide) {
  Scenario scenario = long_ring();
  scenario.numerics.dkv_wire = WireFormat::fp32;
  EXPECT_FALSE(can_hide_shares(plan_scenario(scenario).value().plan()));
  scenario = long_ring();
  scenario.parallel.comm_type = CommType::all_gather;
  EXPECT_FALSE(can_hide_shares(plan_scenario(scenario).value().plan()));
  scenario = long_ring();
  scenario.parallel.cp_size = 16;
  EXPECT_FALSE(can_hide_shares(plan_scenario(scenario).value().plan()));
}

}  // namespace
}  // namespace cpscope::tests
