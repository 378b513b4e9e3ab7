// The mask with the tokens of each rank together.
#include "gui/model/mask/mask_marks.h"
#include "gui/model/mask/mask_view.h"
#include "tests/gui/model/numbers_cases.h"
#include "tests/gui/model/view_probe.h"
#include "tests/support/graded_run.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::PlanIndex;
using gui::View;

/// The ids of all ranks, rank after rank, in local order.
std::vector<int64_t> ids_by_rank(const PlanIndex& plan, Side side) {
  std::vector<int64_t> ids;
  for (const auto& runs : plan.plan().layout.runs(side))
    for (const TokenRun& run : runs)
      for (int64_t n = 0; n < run.count(); ++n) ids.push_back(run.at(n));
  return ids;
}

View draw_by_rank(const PlanIndex& plan, gui::Size size,
                  gui::MaskColors colors = gui::MaskColors::classes, int32_t step = 0,
                  bool is_by_rank = true) {
  static const gui::Projection nothing;
  gui::ViewInput input = probe_input(plan, nothing, size);
  input.is_by_rank = is_by_rank;
  input.mask_colors = colors;
  input.moment = plan.moment_of_step(step);
  return draw_mask(input);
}

const gui::Pixels& cells_of(const View& view) {
  for (const gui::Mark& mark : view.drawing.marks)
    if (const auto* pixels = std::get_if<gui::Pixels>(&mark)) return *pixels;
  ADD_FAILURE() << "no cells";
  static const gui::Pixels none;
  return none;
}

TEST(RankMask, PaintsEveryPairWhereItsRanksHoldIt) {
  for (const char* name : {"zigzag", "striped", "contiguous_idle"}) {
    const gui::SharedPlan plan = plan_shipped(name);
    // Two pixels for each token, so that the middle of a token is in it.
    const View view = draw_by_rank(*plan, {900, 640});
    expect_paintable(view);
    const gui::Pixels& cells = cells_of(view);
    ASSERT_GT(cells.width, 256);
    const gui::MaskPaint paint(gui::theme_of(gui::ThemeName::dark));
    const gui::Color hidden = paint.of(gui::CellLook::empty, gui::PaintWhen::done);
    const std::vector<int64_t> q = ids_by_rank(*plan, Side::q), k = ids_by_rank(*plan, Side::kv);
    const auto at = [](size_t n, size_t count, int32_t pixels) {
      return static_cast<int32_t>((static_cast<double>(n) + 0.5) / static_cast<double>(count) *
                                  pixels);
    };
    for (size_t row = 0; row < q.size(); ++row) {
      for (size_t column = 0; column < k.size(); ++column) {
        const int32_t y = at(row, q.size(), cells.height), x = at(column, k.size(), cells.width);
        const gui::Color color = cells.colors[static_cast<size_t>(y * cells.width + x)];
        const bool is_visible =
            plan->count_visible(q[row], q[row] + 1, k[column], k[column] + 1) == 1;
        ASSERT_EQ(color == hidden, !is_visible)
            << name << ": query " << q[row] << ", key " << k[column];
      }
    }
  }
}

TEST(RankMask, SaysInWhichStepTwoRanksMeet) {
  const gui::SharedPlan plan = plan_shipped("zigzag");
  const View view = draw_by_rank(*plan, {900, 640});
  for (const ComputeItem& item : plan->plan().forward.computes) {
    const int32_t rank = to_index(item.rank), step = to_index(item.step);
    const int32_t keys = (rank - step + 4) % 4;  // a ring: step i brings the KV of rank r - i
    const auto* hit = find_hit(view, "block/" + std::to_string(rank) + "/" + std::to_string(keys));
    ASSERT_NE(hit, nullptr);
    EXPECT_NE(hit->tooltip.find("by rank " + std::to_string(rank) + " in step " +
                                std::to_string(step + 1)),
              std::string::npos)
        << hit->tooltip;
    EXPECT_TRUE(std::holds_alternative<ItemId>(hit->target));
  }
}

TEST(RankMask, IsColouredByOwnerAndByStep) {
  const gui::SharedPlan plan = plan_shipped("zigzag");
  const auto last = static_cast<int32_t>(plan->steps().size()) - 1;
  const auto count_colors = [&](gui::MaskColors colors) {
    const View view = draw_by_rank(*plan, {900, 640}, colors, last);
    std::vector<std::string> seen;
    for (const gui::Color c : cells_of(view).colors) {
      const std::string text =
          std::to_string(c.r) + " " + std::to_string(c.g) + " " + std::to_string(c.b);
      if (std::find(seen.begin(), seen.end(), text) == seen.end()) seen.push_back(text);
    }
    return seen.size();
  };
  EXPECT_GE(count_colors(gui::MaskColors::owners), 5U) << "four ranks and what is hidden";
  EXPECT_GE(count_colors(gui::MaskColors::steps), 5U) << "four steps and what is hidden";
}

TEST(RankMask, SaysInBothOrdersByWhatItIsColoured) {
  const gui::SharedPlan plan = plan_shipped("zigzag");
  for (const bool is_by_rank : {false, true}) {
    const auto says = [&](gui::MaskColors colors, const char* text) {
      return has_text(draw_by_rank(*plan, {900, 640}, colors, 0, is_by_rank), text);
    };
    EXPECT_TRUE(says(gui::MaskColors::owners, "coloured by the rank"));
    EXPECT_TRUE(says(gui::MaskColors::steps, "coloured by step"));
    EXPECT_FALSE(says(gui::MaskColors::classes, "coloured by"));
  }
}

TEST(RankMask, IsSoundForAnyLayoutAndSize) {
  for (const char* name : {"thd_padding_p2p", "packed_group_cast", "cross_attention",
                           "thd_padding_a2a", "imported_order"}) {
    const gui::SharedPlan plan = plan_shipped(name);
    for (const gui::Size size : {gui::Size{180, 140}, gui::Size{330, 300}, gui::Size{1200, 700}})
      expect_paintable(draw_by_rank(*plan, size));
  }
}

TEST(RankMask, ShowsTheLastPictureWhileTheNextIsMade) {
  Scenario scenario = plan_shipped("zigzag")->plan().scenario;
  scenario.batch.lengths = scenario.batch.kv_lengths = {16384};
  scenario.batch.slots = scenario.batch.kv_slots = {16384};
  const PlanIndex plan(*plan_unless_refused(scenario));
  const gui::Projection nothing;
  gui::ViewMemo memo;
  std::vector<std::function<void()>> jobs;
  memo.post = [&](std::function<void()> job) { jobs.push_back(std::move(job)); };
  gui::ViewInput input = probe_input(plan, nothing, {500, 400});
  input.is_by_rank = true;
  input.moment = plan.moment_of_step(0);
  input.memo = &memo;
  EXPECT_TRUE(has_text(draw_mask(input), "Ordering the tokens by rank"));
  ASSERT_EQ(jobs.size(), 1U);
  jobs.front()();
  EXPECT_NE(find_hit(draw_mask(input), "block/3/1"), nullptr);
  input.camera.x = input.camera.y = {0.25, 0.5};
  const View zoomed = draw_mask(input);
  EXPECT_EQ(jobs.size(), 2U);
  EXPECT_GT(cells_of(zoomed).width, 0) << "the last picture, at its new place";
}

}  // namespace
}  // namespace cpscope::tests
