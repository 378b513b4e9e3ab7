#include "sim/plan/check/plan_check.h"
#include "sim/plan/planner/planner.h"
#include "sim/run/grade/grade.h"
#include "sim/scenario/scenario_file.h"
#include "sim/scenario/scenario_names.h"
#include "tests/sim/plan/plan_cases.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

/// A plan of every communication type, called custom.
std::vector<Plan> make_custom_plans() {
  std::vector<Plan> plans;
  for (const CommType comm : kCommTypes) {
    Scenario scenario = make_case({24, 9, 40}, 4, LayoutKind::dual_chunk, comm);
    scenario.attention.heads = 4;
    scenario.attention.kv_heads = 2;
    Plan plan = plan_of(scenario);
    plan.scenario.parallel.comm_type = CommType::custom;
    plans.push_back(std::move(plan));
  }
  return plans;
}

const CheckResult& last_check(const std::vector<CheckResult>& checks) { return checks.back(); }

TEST(CustomPlan, IsProvedWithoutTheClosedFormOfASchedule) {
  for (const Plan& plan : make_custom_plans()) {
    const std::vector<CheckResult> checks = inspect_plan(plan);
    ASSERT_EQ(checks.size(), 7U);
    for (const CheckResult& check : checks)
      EXPECT_TRUE(check.ok) << check.name << ": " << check.detail;
    EXPECT_EQ(last_check(checks).name, "bytes");
    EXPECT_NE(last_check(checks).detail.find("a custom schedule has no closed form"),
              std::string::npos);
  }
}

TEST(CustomPlan, MustStateTheBytesOfItsTransfers) {
  for (Plan& plan : make_custom_plans()) {
    ++plan.forward.transfers.back().bytes;
    const std::vector<CheckResult> checks = inspect_plan(plan);
    EXPECT_FALSE(last_check(checks).ok);
    EXPECT_EQ(last_check(checks).name, "bytes");
  }
}

// The ring's transfers under the name of a schedule that sends fewer bytes.
TEST(CustomPlan, CannotTakeTheNameOfAnotherSchedule) {
  Plan plan = plan_of(make_case({24, 9, 40}, 4));
  plan.scenario.parallel.comm_type = CommType::group_cast;
  const std::vector<CheckResult> checks = inspect_plan(plan);
  EXPECT_FALSE(last_check(checks).ok);
  EXPECT_EQ(last_check(checks).name, "bytes");
}

TEST(CustomPlan, SendsPartialResultsInTheFormatOfItsScenario) {
  Scenario scenario = make_case({24, 9, 40}, 4, LayoutKind::dual_chunk, CommType::pass_q);
  scenario.parallel.partial_wire = WireFormat::fp32;
  Plan plan = plan_of(scenario);
  plan.scenario.parallel.comm_type = CommType::custom;
  EXPECT_TRUE(last_check(inspect_plan(plan)).ok);
  const auto partial =
      std::find_if(plan.forward.transfers.begin(), plan.forward.transfers.end(),
                   [](const TransferItem& item) { return item.payload == Payload::partial; });
  ASSERT_NE(partial, plan.forward.transfers.end());
  partial->wire_fp32 = false;
  partial->bytes = wire_bytes(plan, *partial);
  const CheckResult check = last_check(inspect_plan(plan));
  EXPECT_FALSE(check.ok);
  EXPECT_NE(check.detail.find("travels in the dtype"), std::string::npos) << check.detail;
}

TEST(CustomPlan, HasNoPlanner) {
  const Result<Plan> plan = make_plan(make_case({8}, 2, LayoutKind::dual_chunk, CommType::custom));
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().kind, ErrorKind::refused);
  EXPECT_NE(to_text(plan.error()).find("cpscope.Schedule"), std::string::npos);
}

TEST(CustomPlan, IsNamedInPlanDocumentsAlone) {
  const std::string text =
      print_scenario(make_case({8}, 2, LayoutKind::dual_chunk, CommType::custom));
  const Result<LoadedScenario> file = parse_scenario(text, "a.toml");
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().kind, ErrorKind::bad_input);
  EXPECT_NE(to_text(file.error()).find("a plan document"), std::string::npos)
      << to_text(file.error());
  const Result<LoadedScenario> document =
      parse_scenario(text, "a.toml", ScenarioOrigin::plan_document);
  ASSERT_TRUE(document.ok()) << to_text(document.error());
  EXPECT_EQ(document.value().scenario.parallel.comm_type, CommType::custom);
  EXPECT_EQ(print_scenario(document.value().scenario), text);
}

}  // namespace
}  // namespace cpscope::tests
