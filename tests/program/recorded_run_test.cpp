// The record that a case leaves behind, with an executor that has a clock.
#include "reference/dense_oracle.h"
#include "reference/plan_walker.h"
#include "sim/run/grade/case.h"
#include "sim/run/record/item_tensors.h"
#include "tests/program/program_run.h"

#include <memory>
#include <utility>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

/// The walker, with a clock that says 10 ns an item.
class ClockedWalker : public Executor {
 public:
  std::string name() const override { return "clocked"; }
  int64_t memory_bytes(const CheckedPlan& plan) const override {
    return walker_->memory_bytes(plan);
  }
  Result<RunOutput> run(const CheckedPlan& plan, const RunInputs& inputs,
                        const RunOptions& options) override {
    Result<RunOutput> output = walker_->run(plan, inputs, options);
    if (!output || !options.measures_items) return output;
    for (size_t i = 0; i < plan.plan().forward.computes.size(); ++i) {
      const auto index = static_cast<int64_t>(i);
      const ComputeItem& item = plan.plan().forward.computes[i];
      output.value().events.push_back({{Direction::forward, StageKind::compute, index},
                                       item.rank,
                                       item.step,
                                       index * 10,
                                       index * 10 + 10});
    }
    return output;
  }

 private:
  std::unique_ptr<Executor> walker_ = reference::make_plan_walker();
};

CaseOutcome run_clocked(const CaseOptions& options) {
  Toolbox toolbox;
  toolbox.executors.push_back(std::make_unique<ClockedWalker>());
  toolbox.oracle = reference::dense_oracle();
  const Result<LoadedScenario> loaded = parse_scenario(small_scenario(), "small.toml");
  EXPECT_TRUE(loaded.ok());
  return run_case(toolbox, loaded.value(), options);
}

TEST(RecordedRun, HoldsTheMeasuredEventsOfEveryItem) {
  CaseOptions options;
  options.measures_items = true;
  CaseOutcome outcome = run_clocked(options);
  ASSERT_EQ(outcome.status, CaseStatus::pass) << outcome.reason;
  const size_t items = outcome.plan->plan().forward.computes.size();
  const std::string path = (work_folder() / "clocked.safetensors").string();
  ASSERT_TRUE(write_record(make_record(outcome, small_scenario()), path).ok());
  const RunRecord record = read_record(path).value();
  EXPECT_EQ(record.clock, "measured");
  ASSERT_EQ(record.events.size(), items);
  for (size_t i = 0; i < items; ++i) {
    EXPECT_EQ(record.events[i].item.index, static_cast<int64_t>(i));
    EXPECT_EQ(record.events[i].rank, outcome.plan->plan().forward.computes[i].rank);
    EXPECT_EQ(record.events[i].end_ns, static_cast<int64_t>(i) * 10 + 10);
  }
}

TEST(RecordedRun, HoldsNoClockThatWasNotAskedForAndNoItemsEither) {
  CaseOutcome outcome = run_clocked({});
  const RunRecord record = make_record(outcome, small_scenario());
  EXPECT_EQ(record.clock, "none");
  EXPECT_TRUE(record.events.empty());
  for (const Tensor& tensor : record.tensors)
    EXPECT_FALSE(parse_item_name(tensor.name).has_value()) << tensor.name;
}

TEST(RecordedRun, IsNotMadeOfACaseThatWasCancelled) {
  CaseOptions options;
  std::vector<std::string> phases;
  options.progress = [&](std::string_view phase, int64_t done, int64_t total) {
    EXPECT_LE(done, total);
    if (phases.empty() || phases.back() != phase) phases.emplace_back(phase);
  };
  bool is_judged = false;
  options.is_cancelled = [&] { return is_judged; };
  options.keeps_exact = true;
  const CaseOutcome whole = run_clocked(options);
  ASSERT_EQ(whole.status, CaseStatus::pass) << whole.reason;
  EXPECT_EQ(phases, (std::vector<std::string>{"run", "judge"}));
  EXPECT_EQ(whole.exact.out.values.size(), whole.output.answer.out.values.size());
  ASSERT_EQ(whole.grade.tensors[0].name, "out");
  EXPECT_EQ(whole.grade.tensors[0].row_budgets.size(), whole.output.answer.lse.values.size());

  // Stopped while it is judged: the answer is there, a grade is not.
  options.progress = [&](std::string_view phase, int64_t, int64_t) {
    is_judged = phase == "judge";
  };
  const CaseOutcome judged = run_clocked(options);
  EXPECT_EQ(judged.status, CaseStatus::skipped);
  EXPECT_TRUE(judged.reason.starts_with("the judgement was cancelled after ")) << judged.reason;
  EXPECT_TRUE(judged.grade.tensors.empty());
  EXPECT_TRUE(judged.exact.out.values.empty());

  is_judged = true;
  const CaseOutcome run = run_clocked(options);
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_TRUE(run.reason.starts_with("the run was cancelled after 0 of ")) << run.reason;
  EXPECT_TRUE(run.output.answer.out.values.empty());
}

TEST(RecordedRun, HoldsTheBudgetsOfTheGrade) {
  CaseOutcome outcome = run_clocked({});
  const RunRecord record = make_record(outcome, small_scenario());
  ASSERT_EQ(record.budgets.size(), outcome.grade.tensors.size());
  for (size_t t = 0; t < record.budgets.size(); ++t) {
    EXPECT_EQ(record.budgets[t].name, outcome.grade.tensors[t].name);
    EXPECT_EQ(record.budgets[t].rel_l2, outcome.grade.tensors[t].budget);
    EXPECT_GT(record.budgets[t].l2, 0.0);
  }
}

}  // namespace
}  // namespace cpscope::tests
