#include "gui/model/mask/mask_view.h"

#include "gui/model/axis.h"
#include "gui/model/mask/mask_marks.h"
#include "gui/model/project.h"
#include "tests/gui/model/pair_truth.h"
#include "tests/gui/model/random_plans.h"
#include "tests/gui/model/view_check.h"
#include "tests/support/walker_cases.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::CellLook;
using gui::PaintWhen;
using gui::PlanIndex;
using gui::View;

constexpr gui::Size kLargeMask{1700, 1400};

/// The picture of the cells: the one with the most cells.
const gui::Pixels* find_cells(const View& view) {
  const gui::Pixels* largest = nullptr;
  for (const gui::Mark& mark : view.drawing.marks) {
    const auto* pixels = std::get_if<gui::Pixels>(&mark);
    if (pixels != nullptr && (largest == nullptr || pixels->colors.size() > largest->colors.size()))
      largest = pixels;
  }
  return largest;
}

/// When a step of a pass computes, according to the stages.
PaintWhen when_of(const PlanIndex& index, Direction direction, int32_t step, gui::Moment moment) {
  for (size_t s = 0; s < index.stages().size(); ++s) {
    const gui::StageRef& stage = index.stages()[s];
    if (stage.kind != StageKind::compute || stage.direction != direction || stage.step != step)
      continue;
    if (static_cast<int32_t>(s) < moment.first_stage) return PaintWhen::done;
    if (static_cast<int32_t>(s) < moment.end_stage) return PaintWhen::now;
  }
  return PaintWhen::later;
}

std::vector<gui::Moment> some_moments(const PlanIndex& index) {
  std::vector<gui::Moment> moments;
  for (size_t step = 0; step < index.steps().size(); ++step)
    moments.push_back(index.moment_of_step(static_cast<int32_t>(step)));
  for (size_t stage = 0; stage < index.stages().size(); stage += 3)
    moments.push_back(index.moment_of_stage(static_cast<int32_t>(stage)));
  return moments;
}

TEST(MaskView, PaintsEveryPairByWhatTheMaskAndTheScheduleSay) {
  for_plans_of_seeds(40, [](const PlanIndex& index, uint64_t) {
    Asked asked(index, kLargeMask);
    const gui::MaskPaint paint(*asked.input.theme);
    const ByDirection<PairTruth> truths{write_out(index, Direction::forward),
                                        write_out(index, Direction::backward)};
    for (const gui::Moment moment : some_moments(index)) {
      asked.input.moment = moment;
      const View view = draw_mask(asked.input);
      expect_sound(view);
      const gui::Pixels* cells = find_cells(view);
      ASSERT_NE(cells, nullptr);
      const Direction direction = index.stages()[moment.first_stage].direction;
      const PairTruth& truth = truths[direction];
      // There are few tokens, so a cell is one pair.
      ASSERT_EQ(cells->height, truth.q);
      ASSERT_EQ(cells->width, truth.k);
      for (int64_t q = 0; q < truth.q; ++q) {
        for (int64_t k = 0; k < truth.k; ++k) {
          const gui::Color color = cells->colors[truth.at(q, k)];
          const auto is = [&](CellLook look, PaintWhen when) {
            return color == paint.of(look, when) || color == paint.hatch_of(look, when);
          };
          const gui::CellWork& work = truth.work[truth.at(q, k)];
          if (work.first_step != work.last_step) {
            // Stages of heads: between the first and the last step a colour tells the share.
            ASSERT_FALSE(is(CellLook::empty, PaintWhen::later) ||
                         is(CellLook::padding, PaintWhen::later))
                << "pair " << q << ", " << k;
          } else if (truth.is_visible[truth.at(q, k)] != 0) {
            const PaintWhen when = when_of(index, direction, work.first_step, moment);
            ASSERT_TRUE(is(CellLook::full, when) || is(CellLook::partial, when))
                << "pair " << q << ", " << k;
          } else if (index.is_valid(Side::q, q) && index.is_valid(Side::kv, k)) {
            ASSERT_TRUE(is(CellLook::empty, PaintWhen::later) ||
                        is(CellLook::hidden, PaintWhen::later))
                << "pair " << q << ", " << k;
          } else {
            ASSERT_TRUE(is(CellLook::padding, PaintWhen::later)) << "pair " << q << ", " << k;
          }
        }
      }
    }
  });
}

TEST(MaskView, NamesTheOnlyItemOfAChunkPair) {
  int64_t items = 0, ranges = 0;
  for_plans_of_seeds(60, [&](const PlanIndex& index, uint64_t) {
    Asked asked(index, kLargeMask);
    const PairTruth truth = write_out(index, Direction::forward);
    for (const gui::HitRegion& hit : draw_mask(asked.input).hits) {
      int64_t q0 = 0, k0 = 0;
      ASSERT_EQ(std::sscanf(hit.name.c_str(), "pair/%ld/%ld", &q0, &k0), 2) << hit.name;
      int64_t q1 = 0, k1 = 0, visible = 0, area = 0;
      // "queries [0, 16) of rank 0 x keys [16, 32) of rank 1: ..."
      ASSERT_EQ(std::sscanf(hit.tooltip.c_str(), "queries [%*d, %ld)", &q1), 1) << hit.tooltip;
      const size_t keys = hit.tooltip.find(" x keys [");
      ASSERT_NE(keys, std::string::npos);
      ASSERT_EQ(std::sscanf(hit.tooltip.c_str() + keys, " x keys [%*d, %ld)", &k1), 1);
      gui::CellWork work;
      for (int64_t q = q0; q < q1; ++q) {
        for (int64_t k = k0; k < k1; ++k) {
          ++area;
          visible += truth.is_visible[truth.at(q, k)];
          join(work, truth.work[truth.at(q, k)]);
        }
      }
      const std::string counts =
          "(" + gui::print_count(visible) + " of " + gui::print_count(area) + " pairs)";
      ASSERT_NE(hit.tooltip.find(counts), std::string::npos) << hit.tooltip << " has no " << counts;
      if (const auto* item = std::get_if<ItemId>(&hit.target)) {
        ASSERT_EQ(item->index, work.item) << hit.name;
        const std::string when = "computed by rank " + std::to_string(work.first_rank) +
                                 " in step " + std::to_string(work.first_step + 1);
        ASSERT_NE(hit.tooltip.find(when), std::string::npos) << hit.tooltip;
        ++items;
      } else {
        ASSERT_LT(work.item, 0) << hit.name;
        ASSERT_EQ(std::get<gui::PairRange>(hit.target), (gui::PairRange{q0, q1, k0, k1}));
        ++ranges;
      }
    }
  });
  EXPECT_GT(items, 500);
  EXPECT_GT(ranges, 500);
}

TEST(MaskView, PrintsCountsThatSinglePairsAddUpTo) {
  for_plans_of_seeds(60, [](const PlanIndex& index, uint64_t) {
    Asked asked(index, kLargeMask);
    const PairTruth truth = write_out(index, Direction::forward);
    const int64_t visible = std::count(truth.is_visible.begin(), truth.is_visible.end(), 1);
    const View view = draw_mask(asked.input);
    const std::string text =
        gui::print_count(visible) + " of " + gui::print_count(truth.q * truth.k) + " pairs visible";
    EXPECT_TRUE(has_words(view, text)) << text;
  });
}

TEST(MaskView, PrintsTheStepOfEachChunkPairOfAZigzagRing) {
  Scenario scenario = walker_case({256}, 4);
  const auto plan = plan_unless_refused(scenario);
  ASSERT_TRUE(plan);
  const PlanIndex index(*plan);
  Asked asked(index, kLargeMask);
  const View view = draw_mask(asked.input);
  // Rank min(c, 7 - c) owns chunk c; KV of rank s reaches rank r in step (r - s) mod 4.
  for (int64_t q = 0; q < 8; ++q) {
    for (int64_t k = 0; k <= q; ++k) {
      const int64_t r = std::min(q, 7 - q), s = std::min(k, 7 - k);
      const std::string expected = std::to_string((r - s + 4) % 4 + 1);
      const auto hit = std::find_if(view.hits.begin(), view.hits.end(), [&](const auto& h) {
        return h.name == "pair/" + std::to_string(q * 32) + "/" + std::to_string(k * 32);
      });
      ASSERT_NE(hit, view.hits.end());
      const gui::Point middle = hit->box.center();
      const bool is_there = std::any_of(
          view.drawing.marks.begin(), view.drawing.marks.end(), [&](const gui::Mark& mark) {
            const auto* label = std::get_if<gui::Label>(&mark);
            return label != nullptr && label->text == expected &&
                   std::abs(label->at.x - middle.x) < 1 && std::abs(label->at.y - middle.y) < 1;
          });
      EXPECT_TRUE(is_there) << "chunks " << q << ", " << k << " in step " << expected;
    }
  }
}

TEST(MaskView, KeepsMoreRoomThanItsTextInALowPanel) {
  const auto plan = plan_unless_refused(walker_case({256}, 4));
  ASSERT_TRUE(plan);
  const PlanIndex index(*plan);
  Asked asked(index, {330, 230});
  const View view = draw_mask(asked.input);
  ASSERT_EQ(view.grids.size(), 1U);
  EXPECT_GT(view.grids[0].box.height(), 230 * 0.45F);
}

TEST(MaskView, ShowsTheSameWithAndWithoutAMemo) {
  for_plans_of_seeds(30, [](const PlanIndex& index, uint64_t seed) {
    std::mt19937_64 random(seed);
    Asked kept(index, kLargeMask);
    for (int n = 0; n < 12; ++n) {
      if (n % 3 == 0) kept.input.camera = random_camera(random);
      kept.input.moment =
          index.moment_of_step(static_cast<int32_t>(random() % index.steps().size()));
      Asked fresh(index, kLargeMask);
      fresh.input.moment = kept.input.moment;
      fresh.input.camera = kept.input.camera;
      fresh.input.memo = nullptr;
      const View a = draw_mask(kept.input), b = draw_mask(fresh.input);
      ASSERT_EQ(a.drawing.marks.size(), b.drawing.marks.size());
      const gui::Pixels *left = find_cells(a), *right = find_cells(b);
      ASSERT_EQ(left == nullptr, right == nullptr);
      if (left != nullptr) {
        ASSERT_EQ(left->colors, right->colors);
      }
      ASSERT_EQ(a.hits.size(), b.hits.size());
    }
  });
}

TEST(MaskView, StaysSoundUnderAnyCameraSizeAndSelection) {
  for_plans_of_seeds(60, [](const PlanIndex& index, uint64_t seed) {
    std::mt19937_64 random(seed);
    Asked asked(index, kLargeMask);
    for (int n = 0; n < 12; ++n) {
      asked.input.camera = random_camera(random);
      asked.input.size = n % 2 == 0 ? kLargeMask : random_size(random);
      asked.input.moment =
          index.moment_of_stage(static_cast<int32_t>(random() % index.stages().size()));
      asked.input.focus_rank = static_cast<int32_t>(random() % index.num_ranks());
      const gui::Target targets[] = {gui::Nothing{}, gui::RankTarget{asked.input.focus_rank},
                                     ItemId{Direction::forward, StageKind::compute, 0},
                                     gui::PairRange{0, 5, 2, 9}, gui::TokenRange{Side::kv, 1, 7}};
      asked.input.selection = targets[random() % std::size(targets)];
      asked.selected = gui::project(asked.input.selection, index);
      asked.hovered = gui::project(targets[random() % std::size(targets)], index);
      expect_sound(draw_mask(asked.input));
      if (testing::Test::HasFatalFailure()) return;
    }
  });
}

TEST(MaskView, StaysSoundWithMoreBandsAndSequencesThanPixels) {
  Scenario scenario = walker_case(std::vector<int64_t>(16'000, 4), 2);
  scenario.attention.chunk_size = 2;
  scenario.parallel.layout = LayoutKind::contiguous;
  const auto plan = plan_unless_refused(scenario);
  ASSERT_TRUE(plan);
  const PlanIndex index(*plan);
  Asked asked(index, kLargeMask);
  for (const double width : {1.0, 0.3, 0.05, 0.01}) {
    asked.input.camera = {{0.2, 0.2 + width}, {0.2, 0.2 + width}};
    const View view = draw_mask(asked.input);
    expect_sound(view);
    EXPECT_LT(view.drawing.marks.size(), 6'000U) << "width " << width;
  }
}

TEST(MaskView, OutlinesWhatTheFocusRankComputesNow) {
  for_plans_of_seeds(60, [](const PlanIndex& index, uint64_t) {
    Asked asked(index, kLargeMask);
    for (int32_t rank = 0; rank < index.num_ranks(); ++rank) {
      asked.input.focus_rank = rank;
      int64_t pairs = 0;
      bool has_items = false;
      for (const ComputeItem& item : index.plan().forward.computes) {
        if (to_index(item.rank) != rank || to_index(item.step) != 0 || item.num_slices == 0)
          continue;
        has_items = true;
        pairs += item.visible_pairs / item.heads.size();
      }
      const std::string text =
          has_items ? "rank " + std::to_string(rank) + " now: " + gui::print_count(pairs) + " pairs"
                    : "rank " + std::to_string(rank) + " computes nothing now";
      EXPECT_TRUE(has_words(draw_mask(asked.input), text)) << text;
    }
  });
}

}  // namespace
}  // namespace cpscope::tests
