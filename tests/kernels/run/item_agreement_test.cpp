// The CPU executor and the device, item by item: two records of one scenario, compared with the
// tolerance from their error budgets. The same test runs on the CPU emulator and on a GPU.
#include "kernels/run/executor_cuda.h"
#include "reference/plan_walker.h"
#include "sim/run/grade/record_diff.h"
#include "sim/run/record/item_tensors.h"
#include "sim/run/run_inputs.h"
#include "sim/scenario/random_scenario.h"
#include "sim/scenario/scenario_file.h"
#include "tests/kernels/lower/piece_cases.h"
#include "tests/support/graded_run.h"
#include "tests/support/sweep.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

#ifdef CPSCOPE_EMULATED
const uint64_t kComparedScenarios = sweep(9, 18);
#else
constexpr uint64_t kComparedScenarios = 200;
#endif

constexpr uint64_t kFirstSeed = 7'500'000;
constexpr DiffRule kEarned{.is_earned = true, .rel_l2 = 0.0};

/// Uses the dtypes of devices in turn. In every third one queries move.
Scenario scenario_of(uint64_t seed) {
  RandomSpace space;
  space.max_length = kLongestSequence;
  space.moves_queries = seed / 3 % 3 == 2;
  space.has_rare = true;
  Scenario scenario = random_scenario(seed, space);
  constexpr Dtype kDtypes[] = {Dtype::bf16, Dtype::fp16, Dtype::fp32};
  scenario.numerics.dtype = kDtypes[seed % 3];
  return scenario;
}

/// A record of the run with answers, items and budgets.
RunRecord record_run(Executor& executor, const CheckedPlan& plan, const RunInputs& inputs,
                     const Verdict& verdict) {
  RunRecord record;
  RunOptions options;
  options.poison = true;
  std::vector<Tensor> items;
  options.observer = [&](const ItemResult& result) {
    items.push_back(make_item_tensor(result, Dtype::fp32));
  };
  const Result<RunOutput> output = executor.run(plan, inputs, options);
  EXPECT_TRUE(output.ok()) << to_text(output.error());
  if (!output) return record;
  const Answer& answer = output.value().answer;
  for (const Tensor* tensor : {&answer.out, &answer.lse, &answer.dq, &answer.dk, &answer.dv}) {
    if (!tensor->name.empty()) record.tensors.push_back(*tensor);
  }
  record.tensors.insert(record.tensors.end(), items.begin(), items.end());
  const Grade grade = grade_answer(plan.plan(), inputs, answer, verdict);
  EXPECT_TRUE(grade.passed) << executor.name() << ", " << describe_first_failure(grade) << "\n"
                            << print_scenario(plan.plan().scenario);
  for (const TensorGrade& tensor : grade.tensors)
    record.budgets.push_back({tensor.name, tensor.budget, tensor.budget_l2});
  return record;
}

/// Two executors' records of one scenario.
struct TwoRecords {
  RunRecord cpu, device;
};

std::optional<TwoRecords> record_both(Executor& device, const Scenario& scenario) {
  const auto plan = plan_unless_refused(scenario);
  if (!plan) return std::nullopt;
  const RunInputs inputs = make_run_inputs(plan->plan(), true);
  const Verdict verdict = judge_plan(*plan, inputs);
  return TwoRecords{record_run(*reference::make_plan_walker(), *plan, inputs, verdict),
                    record_run(device, *plan, inputs, verdict)};
}

TEST(ItemAgreement, HoldsBetweenWalkerAndDeviceWithinTheEarnedTolerance) {
  const std::unique_ptr<Executor> device = kernels::make_executor_cuda();
  if (device->absence()) GTEST_SKIP() << "requires gpu: " << to_text(*device->absence());
  uint64_t compared = 0;
  for (uint64_t seed = kFirstSeed; seed < kFirstSeed + kComparedScenarios; ++seed) {
    const Scenario scenario = scenario_of(seed);
    const auto records = record_both(*device, scenario);
    if (!records) continue;
    ++compared;
    ASSERT_EQ(records->cpu.tensors.size(), records->device.tensors.size()) << "seed " << seed;
    for (size_t t = 0; t < records->cpu.tensors.size(); ++t)
      EXPECT_EQ(records->cpu.tensors[t].name, records->device.tensors[t].name) << "seed " << seed;
    const auto diffs = diff_runs(records->device, records->cpu);
    for (const TensorDiff& diff : diffs) {
      EXPECT_TRUE(is_within(diff, kEarned))
          << "seed " << seed << ", " << diff.name << " " << diff.shape_mismatch << ": " << diff.l2
          << " apart, earned " << diff.earned->allowed_l2 << ", row excess "
          << diff.earned->row_excess << "; row " << diff.worst_row << ", head " << diff.worst_head
          << ", lane " << diff.worst_lane << ": device " << diff.left << ", cpu " << diff.right
          << "\n"
          << print_scenario(scenario);
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(compared * 10, kComparedScenarios * 8) << "most scenarios are to be possible";
}

/// Reverses the largest row of an item's array.
void spoil(Tensor& tensor) {
  const int64_t lanes = tensor.shape[2];
  const auto furthest =
      std::max_element(tensor.values.begin(), tensor.values.end(),
                       [](double a, double b) { return std::abs(a) < std::abs(b); });
  const int64_t begin = (furthest - tensor.values.begin()) / lanes * lanes;
  for (int64_t i = begin; i < begin + lanes; ++i) tensor.values[static_cast<size_t>(i)] *= -1;
}

TEST(ItemAgreement, IsBrokenByOneWrongRowOfOneItem) {
  const std::unique_ptr<Executor> device = kernels::make_executor_cuda();
  if (device->absence()) GTEST_SKIP() << "requires gpu: " << to_text(*device->absence());
  const auto records = record_both(*device, scenario_of(kFirstSeed));
  ASSERT_TRUE(records.has_value());
  int spoiled = 0;
  for (size_t t = 0; t < records->device.tensors.size(); ++t) {
    const auto name = parse_item_name(records->device.tensors[t].name);
    if (!name || name->array == "lse" || name->item.kind != StageKind::compute) continue;
    RunRecord wrong = records->device;
    spoil(wrong.tensors[t]);
    const auto diffs = diff_runs(wrong, records->cpu);
    const TensorDiff* first = find_first_item(diffs, kEarned);
    ASSERT_NE(first, nullptr) << wrong.tensors[t].name;
    EXPECT_EQ(first->name, wrong.tensors[t].name);
    ++spoiled;
  }
  EXPECT_GT(spoiled, 3);
}

}  // namespace
}  // namespace cpscope::tests
