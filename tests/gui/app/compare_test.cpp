// Pinned plans beside the open one.
#include "gui/app/document/compare.h"

#include "gui/app/app_state.h"
#include "gui/app/command.h"
#include "gui/app/prediction.h"
#include "tests/gui/scenario_files.h"

#include <algorithm>
#include <span>
#include <string>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

TEST(ComparedPlans, SayByHowMuchAFigureChanges) {
  const std::string scenarios = std::string(CPSCOPE_SOURCE_DIR) + "/scenarios";
  const auto idle = open_example_of(scenarios, "contiguous_idle");
  const auto even = open_example_of(scenarios, "zigzag");
  const auto striped = open_example_of(scenarios, "striped");
  const gui::ComparedPlan plans[] = {{idle->plan()}, {even->plan(), 100}, {striped->plan(), 90}};
  const auto figures = gui::compare_plans(plans);
  const auto find = [&](const std::string& name) {
    return *std::find_if(figures.begin(), figures.end(),
                         [&](const gui::ComparedFigure& f) { return f.name == name; });
  };
  const auto busiest = find("busiest rank / mean").values;
  ASSERT_EQ(busiest.size(), 3u);
  EXPECT_EQ(busiest[0].change, "");
  EXPECT_EQ(busiest[1].text, "1.000 x");
  EXPECT_TRUE(busiest[1].change.starts_with("-"));
  EXPECT_TRUE(busiest[1].is_best);
  EXPECT_FALSE(busiest[0].is_best || busiest[2].is_best);
  EXPECT_EQ(find("steps").values[2].change, "=");
  EXPECT_FALSE(find("steps").values[0].is_best) << "all are alike";
  EXPECT_FALSE(find("K and V necessary").values[0].is_best) << "not a cost";
  EXPECT_NE(figures[0].name, "predicted time") << "one plan has none";
  const auto timed = gui::compare_plans(std::span(plans).subspan(1));
  EXPECT_EQ(timed[0].name, "predicted time");
  EXPECT_EQ(timed[0].values[1].change, "-10 %");
}

TEST(ComparedPlans, HaveOneTimeScale) {
  const std::string scenarios = std::string(CPSCOPE_SOURCE_DIR) + "/scenarios";
  const auto idle = open_example_of(scenarios, "contiguous_idle");
  const auto state = open_example_of(scenarios, "zigzag");
  EXPECT_EQ(view_input(*state, gui::ViewKind::timeline).stretch, 1.0);
  state->pinned = {idle->document.plan()};
  const double own = view_input(*state, gui::ViewKind::timeline).stretch;
  const double pinned = view_input_pinned(*state, gui::ViewKind::timeline, 0).stretch;
  EXPECT_EQ(pinned, 1.0) << "the longer plan fills the axis";
  const double ratio = idle->plan()->summary().critical_path_over_ideal /
                       state->plan()->summary().critical_path_over_ideal;
  EXPECT_NEAR(own, ratio, 0.01) << "the other one ends as much earlier";
}

TEST(ComparedPlans, HaveOneScaleOfPredictedTime) {
  const std::string scenarios = std::string(CPSCOPE_SOURCE_DIR) + "/scenarios";
  const auto state = open_example_of(scenarios, "thd_padding_p2p");
  Result<Cluster> cluster = load_cluster("h200x8", scenarios + "/clusters");
  ASSERT_TRUE(cluster.ok());
  state->services.clusters.push_back(std::move(cluster).value());
  choose_cluster(*state, "h200x8", "");
  for (const LayoutKind layout : {LayoutKind::contiguous, LayoutKind::striped}) {
    apply_command(*state, "compare.pin");
    EXPECT_FALSE(apply_command(*state, "compare.pin")) << "each plan once";
    Scenario scenario = state->document.scenario();
    scenario.parallel.layout = layout;
    edit_scenario(*state, scenario, "parallel.layout");
    settle(*state);
  }
  ASSERT_EQ(state->pinned.size(), 2u);
  for (int n = 0; n < 3; ++n) wait_for_prediction(*state);
  const auto axis_ns = [&](const gui::ViewInput& input) {
    EXPECT_TRUE(input.run_a != nullptr && input.run_a->is_simulated);
    return input.stretch * static_cast<double>(input.run_a->total_ns);
  };
  const double own = axis_ns(view_input(*state, gui::ViewKind::timeline));
  EXPECT_NEAR(axis_ns(view_input_pinned(*state, gui::ViewKind::timeline, 0)), own, 1e-6 * own);
  EXPECT_NEAR(axis_ns(view_input_pinned(*state, gui::ViewKind::timeline, 1)), own, 1e-6 * own);
  // Another cluster: all times are predicted again.
  choose_cluster(*state, "", "");
  EXPECT_EQ(view_input_pinned(*state, gui::ViewKind::timeline, 0).run_a, nullptr);
}

}  // namespace
}  // namespace cpscope::tests
