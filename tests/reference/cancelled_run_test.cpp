// Long work that is cancelled: the walker, the oracle and the sampled oracle.
#include "reference/dense_oracle.h"
#include "reference/plan_walker.h"
#include "sim/run/run_inputs.h"
#include "tests/support/graded_run.h"
#include "tests/support/walker_cases.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

/// Returns true from the n-th call on.
struct Stopper {
  explicit Stopper(int64_t patience) : left(patience) {}

  std::atomic<int64_t> left;
  std::atomic<int64_t> asked = 0;
  int64_t done = 0, total = 0;

  RunControl control() {
    return {[this](int64_t now, int64_t of) {
              EXPECT_GE(now, done);
              done = now;
              total = of;
            },
            [this] {
              ++asked;
              return --left < 0;
            }};
  }
};

struct Ready {
  CheckedPlan plan;
  RunInputs inputs;
};

Ready make_ready() {
  const Scenario scenario = walker_case({64, 32}, 4);
  CheckedPlan plan = *plan_unless_refused(scenario);
  RunInputs inputs = make_run_inputs(plan.plan(), true);
  return {std::move(plan), std::move(inputs)};
}

TEST(CancelledRun, EndsTheWalkerEarlyAndSaysHowFarItCame) {
  const Ready ready = make_ready();
  const int64_t items =
      ready.plan.plan().forward.num_items() + ready.plan.plan().backward.num_items();
  int64_t earlier = 0;
  for (const int64_t patience : {0, 1, 7, 40}) {
    Stopper stopper(patience);
    RunOptions options{.poison = true, .threads = 1, .control = stopper.control()};
    const Result<RunOutput> output =
        reference::make_plan_walker()->run(ready.plan, ready.inputs, options);
    ASSERT_FALSE(output.ok()) << patience;
    EXPECT_EQ(output.error().kind, ErrorKind::unavailable);
    EXPECT_EQ(to_text(output.error()),
              fmt::format("the run was cancelled after {} of {} items", stopper.done, items));
    EXPECT_EQ(stopper.asked, patience + 1) << "one yes is enough";
    EXPECT_LE(stopper.done, patience) << "nothing is done without asking first";
    EXPECT_LT(stopper.done, items);
    EXPECT_GE(stopper.done, earlier);
    earlier = stopper.done;
  }
  EXPECT_GT(earlier, 0);
}

TEST(CancelledRun, ShowsNoObserverAHalfFinishedStage) {
  const Ready ready = make_ready();
  std::vector<std::vector<double>> whole;
  RunOptions options{.poison = true, .threads = 1};
  options.observer = [&](const ItemResult& result) { whole.push_back(result.values); };
  ASSERT_TRUE(reference::make_plan_walker()->run(ready.plan, ready.inputs, options).ok());
  for (int64_t patience = 0; patience < 60; patience += 3) {
    std::vector<std::vector<double>> seen;
    Stopper stopper(patience);
    options.observer = [&](const ItemResult& result) { seen.push_back(result.values); };
    options.control = stopper.control();
    ASSERT_FALSE(reference::make_plan_walker()->run(ready.plan, ready.inputs, options).ok());
    ASSERT_LT(seen.size(), whole.size());
    // Compared bit by bit, because NaN does not equal itself.
    for (size_t i = 0; i < seen.size(); ++i) {
      ASSERT_EQ(seen[i].size(), whole[i].size());
      EXPECT_EQ(std::memcmp(seen[i].data(), whole[i].data(), seen[i].size() * sizeof(double)), 0)
          << "array " << i << ", stopped at question " << patience;
    }
  }
}

TEST(CancelledRun, LeavesARunThatGoesOnAsItIs) {
  const Ready ready = make_ready();
  for (const int threads : {1, 3}) {
    Stopper stopper(int64_t{1} << 40);
    RunOptions options{.poison = true, .threads = threads, .control = stopper.control()};
    const Result<RunOutput> output =
        reference::make_plan_walker()->run(ready.plan, ready.inputs, options);
    ASSERT_TRUE(output.ok()) << to_text(output.error());
    EXPECT_TRUE(is_bitwise_equal(output.value().answer, walk(ready.plan, ready.inputs)));
    // Checked before every head of every computation, even if there are few stages.
    int64_t units = 0;
    for (const ComputeItem& item : ready.plan.plan().forward.computes)
      units += item.num_slices > 0 ? item.heads.size() : 0;
    EXPECT_GE(stopper.asked, units);
    EXPECT_EQ(stopper.done, stopper.total);
    EXPECT_EQ(stopper.total,
              ready.plan.plan().forward.num_items() + ready.plan.plan().backward.num_items());
  }
}

TEST(CancelledRun, EndsTheJudge) {
  const Ready ready = make_ready();
  const Plan& plan = ready.plan.plan();
  Stopper patient(int64_t{1} << 40);
  const Result<Verdict> whole =
      reference::judge(plan.scenario, ready.inputs, count_hops(plan), patient.control());
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(patient.done, patient.total);
  EXPECT_TRUE(is_bitwise_equal(whole.value().exact, judge_plan(ready.plan, ready.inputs).exact));
  for (const int64_t patience : {int64_t{0}, patient.asked / 2}) {
    Stopper stopper(patience);
    const Result<Verdict> verdict =
        reference::judge(plan.scenario, ready.inputs, count_hops(plan), stopper.control());
    ASSERT_FALSE(verdict.ok());
    EXPECT_EQ(to_text(verdict.error()),
              fmt::format("the judgement was cancelled after {} of {} parts", stopper.done,
                          patient.total));
    EXPECT_LT(stopper.done, patient.total);
  }
}

TEST(CancelledRun, EndsTheSampledJudge) {
  const Ready ready = make_ready();
  const Plan& plan = ready.plan.plan();
  const Answer seen = walk(ready.plan, ready.inputs);
  const JudgedRows rows{{0, 5, 70}, {3}};
  Stopper stopper(1);
  const Result<Verdict> verdict = reference::judge_rows(plan.scenario, ready.inputs, seen, rows,
                                                        count_hops(plan), stopper.control());
  ASSERT_FALSE(verdict.ok());
  EXPECT_EQ(verdict.error().kind, ErrorKind::unavailable);
  Stopper patient(int64_t{1} << 40);
  ASSERT_TRUE(reference::judge_rows(plan.scenario, ready.inputs, seen, rows, count_hops(plan),
                                    patient.control())
                  .ok());
  EXPECT_EQ(patient.done, patient.total);
}

}  // namespace
}  // namespace cpscope::tests
