// The layout's view of reorders: rows that move between rank order and token order.
#include "gui/model/layout/layout_view.h"
#include "sim/plan/planner/planner.h"
#include "sim/scenario/scenario_file.h"
#include "tests/gui/model/plan_truth.h"
#include "tests/gui/model/random_plans.h"
#include "tests/gui/model/view_check.h"
#include "tests/gui/model/view_probe.h"
#include "tests/support/graded_run.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::Box;
using gui::HitRegion;
using gui::PlanIndex;
using gui::View;

/// Boxes of the reorder's chunks, by row of the rank order.
std::map<std::string, Box> reorder_boxes(const View& view) {
  std::map<std::string, Box> boxes;
  for (const HitRegion& hit : view.hits)
    if (hit.name.starts_with("reorder/")) boxes[hit.name] = hit.box;
  return boxes;
}

TEST(LayoutView, MovesRowsFromRankOrderToTokenOrderAsTheReorderProceeds) {
  const auto index = plan_file(CPSCOPE_SOURCE_DIR "/scenarios/thd_padding_a2a.toml");
  ASSERT_TRUE(index.has_value());
  int32_t reorder = 0;
  while (index->stages()[static_cast<size_t>(reorder)].kind != StageKind::reorder) ++reorder;
  Asked asked(*index, {3000, 800});
  asked.input.moment = index->moment_of_stage(reorder);
  const auto at = [&](double progress) {
    asked.input.progress = progress;
    return reorder_boxes(draw_layout(asked.input));
  };
  // Queries move in the first half; keys and values in the second half.
  const auto before = at(0), half = at(0.25), after = at(0.5);
  ASSERT_GT(before.size(), 10U);
  // Before: in rank order, that is, one local buffer after another, so by row; after: by token.
  const auto tokens = local_tokens(*index, Side::q);
  std::vector<int64_t> ranked;
  for (const auto& local : tokens) ranked.insert(ranked.end(), local.begin(), local.end());
  const double per_row = (before.rbegin()->second.x1 - before.rbegin()->second.x0) > 0 ? 1 : 0;
  ASSERT_EQ(per_row, 1);
  std::map<double, int64_t> by_x_before, by_x_after;
  for (const auto& [name, box] : before) {
    const int64_t row = std::stoll(name.substr(name.rfind('/') + 1));
    by_x_before[box.x0] = row;
    by_x_after[after.at(name).x0] = ranked[static_cast<size_t>(row)];
    EXPECT_NEAR(half.at(name).x0, (box.x0 + after.at(name).x0) / 2, 0.6) << name;
    EXPECT_LT(box.y0, half.at(name).y0);
    EXPECT_LT(half.at(name).y0, after.at(name).y0);
  }
  int64_t last = -1;
  for (const auto& [x, row] : by_x_before) {
    EXPECT_GT(row, last);
    last = row;
  }
  last = -1;
  for (const auto& [x, token] : by_x_after) {
    EXPECT_GT(token, last);
    last = token;
  }
}

/// The view's hits whose names have this prefix, with their targets.
std::map<std::string, gui::Target> named_targets(const View& view, const std::string& prefix) {
  std::map<std::string, gui::Target> targets;
  for (const HitRegion& hit : view.hits)
    if (hit.name.starts_with(prefix)) targets[hit.name] = hit.target;
  return targets;
}

TEST(LayoutView, ShowsEveryReorderOfTheStepOneAfterAnother) {
  for (const char* name : {"thd_padding_a2a", "gqa_replicated_a2a", "thd_padding_hierarchical"}) {
    const auto index = plan_file(std::string(CPSCOPE_SOURCE_DIR "/scenarios/") + name + ".toml");
    ASSERT_TRUE(index.has_value());
    for (int32_t step = 0; step < static_cast<int32_t>(index->steps().size()); ++step) {
      const gui::Moment moment = index->moment_of_step(step);
      const Direction direction = index->steps()[static_cast<size_t>(step)].direction;
      // All reorders of rank 0 in this step, directly from the plan.
      const Pass& pass = index->pass(direction);
      std::vector<int64_t> wanted;
      for (int64_t i = 0; i < static_cast<int64_t>(pass.reorders.size()); ++i) {
        const ReorderItem& item = pass.reorders[static_cast<size_t>(i)];
        if (to_index(item.rank) == 0 &&
            to_index(item.step) == index->steps()[static_cast<size_t>(step)].step)
          wanted.push_back(i);
      }
      if (wanted.size() < 2) continue;
      Asked asked(*index, {1600, 800});
      asked.input.moment = moment;
      const std::string prefix = "reordered/" + std::string(to_name(direction)) + "/";
      EXPECT_EQ(named_targets(draw_layout(asked.input), prefix).size(), wanted.size()) << name;
      // The progress of the step covers them in order.
      for (size_t turn = 0; turn < wanted.size(); ++turn) {
        asked.input.progress =
            (static_cast<double>(turn) + 0.5) / static_cast<double>(wanted.size());
        const View view = draw_layout(asked.input);
        EXPECT_TRUE(has_text(
            view, "Reorder " + std::to_string(turn + 1) + " of " + std::to_string(wanted.size())))
            << name << ", step " << step << ", turn " << turn;
        EXPECT_TRUE(has_text(view, "50 %")) << name << ", turn " << turn;
      }
      // A selected one is always shown.
      asked.input.selection = ItemId{direction, StageKind::reorder, wanted.back()};
      asked.input.progress = 0;
      EXPECT_TRUE(has_text(draw_layout(asked.input), "Reorder " + std::to_string(wanted.size())));
    }
  }
}

TEST(LayoutView, ShowsAStageOfReordersAloneAndThoseBeforeAsDone) {
  const auto index = plan_file(CPSCOPE_SOURCE_DIR "/scenarios/thd_padding_a2a.toml");
  ASSERT_TRUE(index.has_value());
  for (int32_t s = 0; s < static_cast<int32_t>(index->stages().size()); ++s) {
    const gui::StageRef& stage = index->stages()[static_cast<size_t>(s)];
    if (stage.direction == Direction::backward) break;
    Asked asked(*index, {1600, 800});
    asked.input.moment = index->moment_of_stage(s);
    asked.input.progress = 0.125;
    const View view = draw_layout(asked.input);
    EXPECT_EQ(has_text(view, " %"), stage.kind == StageKind::reorder) << "stage " << s;
    if (stage.kind == StageKind::compute) {
      EXPECT_TRUE(has_text(view, "before attention, done"));
    }
    if (stage.kind == StageKind::transfer && s > 0) {
      EXPECT_TRUE(has_text(view, "after attention, done")) << "out travels in rank order";
    }
  }
}

TEST(LayoutView, ShowsWhereStripesGoInAReorder) {
  auto loaded = load_scenario(CPSCOPE_SOURCE_DIR "/scenarios/striped.toml");
  ASSERT_TRUE(loaded);
  loaded.value().scenario.parallel.comm_type = CommType::a2a;
  const PlanIndex index(*plan_unless_refused(loaded.value().scenario));
  int32_t reorder = 0;
  while (index.stages()[static_cast<size_t>(reorder)].kind != StageKind::reorder) ++reorder;
  Asked asked(index, {900, 700});
  const auto count_ribbons = [&] {
    const View view = draw_layout(asked.input);
    return std::count_if(
        view.drawing.marks.begin(), view.drawing.marks.end(),
        [](const gui::Mark& mark) { return std::holds_alternative<gui::Ribbon>(mark); });
  };
  asked.input.moment = index.moment_of_stage(reorder);
  // The ribbons of the layout itself are the same in the scenario's own ring.
  const auto ring = plan_file(CPSCOPE_SOURCE_DIR "/scenarios/striped.toml");
  Asked without(*ring, {900, 700});
  const View plain = draw_layout(without.input);
  const auto of_layout = std::count_if(
      plain.drawing.marks.begin(), plain.drawing.marks.end(),
      [](const gui::Mark& mark) { return std::holds_alternative<gui::Ribbon>(mark); });
  EXPECT_GE(count_ribbons(), of_layout + 4 * 24) << "24 slices of each of four ranks";
}

}  // namespace
}  // namespace cpscope::tests
