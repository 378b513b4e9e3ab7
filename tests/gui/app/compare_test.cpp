// A pinned plan beside the open one.
#include "gui/app/document/compare.h"

#include "gui/app/app_state.h"
#include "tests/gui/scenario_files.h"

#include <algorithm>
#include <string>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

TEST(ComparedPlans, SayByHowMuchAFigureChanges) {
  const std::string scenarios = std::string(CPSCOPE_SOURCE_DIR) + "/scenarios";
  const auto idle = open_example_of(scenarios, "contiguous_idle");
  const auto even = open_example_of(scenarios, "zigzag");
  const auto figures = gui::compare_plans(*idle->plan(), *even->plan());
  const auto find = [&](const std::string& name) {
    return *std::find_if(figures.begin(), figures.end(),
                         [&](const gui::ComparedFigure& f) { return f.name == name; });
  };
  EXPECT_TRUE(find("busiest rank over mean").change.starts_with("-"));
  EXPECT_EQ(find("busiest rank over mean").better, 1);
  EXPECT_EQ(find("steps").change, "=");
  EXPECT_EQ(find("K and V necessary").better, 0) << "not a cost";
}

TEST(ComparedPlans, HaveOneTimeScale) {
  const std::string scenarios = std::string(CPSCOPE_SOURCE_DIR) + "/scenarios";
  const auto idle = open_example_of(scenarios, "contiguous_idle");
  const auto state = open_example_of(scenarios, "zigzag");
  EXPECT_EQ(view_input(*state, gui::ViewKind::timeline).stretch, 1.0);
  state->pinned = idle->document.plan();
  const double own = view_input(*state, gui::ViewKind::timeline).stretch;
  const double pinned = view_input_pinned(*state, gui::ViewKind::timeline).stretch;
  EXPECT_EQ(pinned, 1.0) << "the longer plan fills the axis";
  const double ratio = idle->plan()->summary().critical_path_over_ideal /
                       state->plan()->summary().critical_path_over_ideal;
  EXPECT_NEAR(own, ratio, 0.01) << "the other one ends as much earlier";
}

}  // namespace
}  // namespace cpscope::tests
