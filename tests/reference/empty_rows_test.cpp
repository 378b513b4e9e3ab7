// Rows that see nothing, padding rows and sequences of length 0 are exactly empty, whatever fresh
// memory and the padding hold.

#include "sim/scenario/scenario_file.h"
#include "tests/support/graded_run.h"
#include "tests/support/walker_cases.h"

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

std::vector<Scenario> cases_with_empty_rows() {
  std::vector<Scenario> cases;
  // Padding inside slots, a sequence of one token and empty sequences.
  Scenario padded = walker_case({5, 0, 12, 1, 0}, 2);
  padded.batch.slots = padded.batch.kv_slots = {8, 3, 12, 4, 0};
  cases.push_back(padded);
  // Bottom-right: the first queries see nothing; the third sequence has no keys at all.
  Scenario short_keys = cross_case({20, 7, 9}, {6, 7, 0}, 2);
  short_keys.attention.mask_type = MaskType::causal_bottom_right;
  cases.push_back(short_keys);
  // Keys that no query sees: to the right of the diagonal, and a whole sequence without queries.
  cases.push_back(cross_case({6, 0}, {20, 11}, 2));
  // Slices with holes between them.
  Scenario holes = walker_case({16, 16}, 2);
  holes.attention.mask_type = MaskType::slices;
  holes.attention.slices = {{2, 9, 0, 5, SliceType::full}, {20, 31, 17, 30, SliceType::causal}};
  cases.push_back(holes);
  return cases;
}

std::vector<Scenario> with_features(const Scenario& scenario) {
  std::vector<Scenario> cases;
  for (const CommType comm : kCommTypes) {
    for (const Dtype dtype : {Dtype::fp64, Dtype::bf16}) {
      Scenario next = scenario;
      next.parallel.comm_type = comm;
      next.numerics.dtype = dtype;
      cases.push_back(next);
      next.attention.softmax_type = SoftmaxType::learnable;
      next.attention.rope_theta = 10.0;
      next.numerics.accumulate = Accumulate::dtype;
      cases.push_back(next);
    }
  }
  return cases;
}

bool is_positive_zero(double value) { return std::bit_cast<uint64_t>(value) == 0; }

/// Every row of `tensor` marked as empty is zero bit by bit; there is no NaN anywhere.
void expect_zero_rows(const Tensor& tensor, const std::vector<bool>& is_empty,
                      const std::string& where) {
  const int64_t lanes = tensor.shape[2];
  for (int64_t i = 0; i < tensor.size(); ++i) {
    ASSERT_FALSE(std::isnan(tensor.values[i])) << tensor.name << " value " << i << "\n" << where;
    if (!is_empty[static_cast<size_t>(i / lanes)]) continue;
    ASSERT_TRUE(is_positive_zero(tensor.values[i]))
        << tensor.name << " row " << i / lanes << ": " << tensor.values[i] << "\n"
        << where;
  }
}

/// [row, head] of keys that no query sees, padding included: where the exact dk and dv are zero.
std::vector<bool> unseen_keys(const Answer& exact) {
  std::vector<bool> unseen;
  const int64_t lanes = exact.dv.shape[2];
  for (int64_t row = 0; row < exact.dv.size() / lanes; ++row) {
    bool is_zero = true;
    for (int64_t lane = 0; lane < lanes; ++lane)
      is_zero = is_zero && exact.dv.values[row * lanes + lane] == 0.0;
    unseen.push_back(is_zero);
  }
  return unseen;
}

TEST(EmptyRows, AreExactlyEmptyWithAndWithoutPoison) {
  int64_t empty_queries = 0, empty_keys = 0;
  for (const Scenario& base : cases_with_empty_rows()) {
    for (const Scenario& scenario : with_features(base)) {
      for (const bool poison : {true, false}) {
        const GradedRun run = run_possible(scenario, {poison, 0});
        ASSERT_TRUE(run.grade.passed) << describe(run);
        // The plain run has empty rows too; a NaN budget would accept everything.
        for (const double value : run.verdict.plain.d_sink) ASSERT_TRUE(std::isfinite(value));
        std::vector<bool> is_empty;
        for (size_t row = 0; row < run.verdict.exact.lse.values.size(); ++row) {
          const double expected = run.verdict.exact.lse.values[row];
          is_empty.push_back(expected == -std::numeric_limits<double>::infinity());
          empty_queries += is_empty.back() ? 1 : 0;
          if (is_empty.back()) {
            ASSERT_EQ(run.answer.lse.values[row], expected) << print_scenario(scenario);
          }
        }
        const std::vector<bool> unseen = unseen_keys(run.verdict.exact);
        for (const bool is_unseen : unseen) empty_keys += is_unseen ? 1 : 0;
        const std::string where = print_scenario(scenario);
        expect_zero_rows(run.answer.out, is_empty, where);
        expect_zero_rows(run.answer.dq, is_empty, where);
        expect_zero_rows(run.answer.dk, unseen, where);
        expect_zero_rows(run.answer.dv, unseen, where);
        if (HasFatalFailure()) return;
      }
    }
  }
  EXPECT_GT(empty_queries, 1'000);
  EXPECT_GT(empty_keys, 1'000);
}

TEST(EmptyRows, OfAWholeBatchLeaveNothingButZeros) {
  for (const CommType comm : kCommTypes) {
    Scenario scenario = cross_case({9, 4}, {0, 0}, 2);
    scenario.parallel.comm_type = comm;
    scenario.attention.softmax_type = SoftmaxType::learnable;
    const GradedRun run = run_possible(scenario);
    EXPECT_TRUE(run.grade.passed) << describe(run);
    for (const double value : run.answer.out.values) EXPECT_TRUE(is_positive_zero(value));
    for (const double value : run.answer.dq.values) EXPECT_TRUE(is_positive_zero(value));
    for (const double value : run.answer.d_sink) EXPECT_EQ(value, 0.0);
    for (const double value : run.answer.max_logit)
      EXPECT_EQ(value, -std::numeric_limits<double>::infinity());
  }
}

}  // namespace
}  // namespace cpscope::tests
