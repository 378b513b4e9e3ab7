#include "gui/model/traffic/traffic_view.h"

#include "gui/model/axis.h"
#include "gui/model/project.h"
#include "tests/gui/model/plan_truth.h"
#include "tests/gui/model/random_plans.h"
#include "tests/gui/model/view_check.h"
#include "tests/support/walker_cases.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::PlanIndex;
using gui::View;

constexpr gui::Size kLargeTraffic{1500, 1000};

TEST(TrafficView, ShowsEveryLinkOfTheMomentWithItsBytes) {
  for_plans_of_seeds(80, [](const PlanIndex& index, uint64_t) {
    Asked asked(index, kLargeTraffic);
    const auto empty = asked.input.theme->of(gui::Role::mask_empty);
    for (size_t step = 0; step < index.steps().size(); ++step) {
      for (const bool is_cumulative : {false, true}) {
        asked.input.moment = index.moment_of_step(static_cast<int32_t>(step));
        asked.input.is_cumulative = is_cumulative;
        const auto sums = add_up_links(index, is_cumulative ? 0 : asked.input.moment.first_stage,
                                       asked.input.moment.end_stage);
        const View view = draw_traffic(asked.input);
        expect_sound(view);
        std::map<std::pair<int32_t, int32_t>, std::string> shown;
        for (const gui::HitRegion& hit : view.hits) {
          if (const auto* link = std::get_if<gui::LinkTarget>(&hit.target))
            shown[{link->src, link->dst}] = hit.tooltip;
        }
        ASSERT_EQ(shown.size(), sums.size());
        for (const auto& [link, bytes] : sums) {
          ASSERT_TRUE(shown.contains(link));
          const std::string text = ": " + gui::print_bytes(static_cast<double>(bytes));
          ASSERT_NE(shown[link].find(text), std::string::npos) << shown[link];
        }
        // The first picture is the matrix.
        const auto pixels = std::find_if(
            view.drawing.marks.begin(), view.drawing.marks.end(),
            [](const gui::Mark& mark) { return std::holds_alternative<gui::Pixels>(mark); });
        ASSERT_NE(pixels, view.drawing.marks.end());
        const auto& matrix = std::get<gui::Pixels>(*pixels);
        ASSERT_EQ(matrix.width, index.num_ranks());
        for (int32_t src = 0; src < index.num_ranks(); ++src) {
          for (int32_t dst = 0; dst < index.num_ranks(); ++dst) {
            ASSERT_EQ(matrix.colors[src * matrix.width + dst] != empty, sums.contains({src, dst}))
                << src << " -> " << dst;
          }
        }
      }
    }
  });
}

TEST(TrafficView, SaysHowManyBytesTravelNowSoFarAndInAll) {
  for_plans_of_seeds(80, [](const PlanIndex& index, uint64_t) {
    Asked asked(index, kLargeTraffic);
    const auto total = [&](int32_t first, int32_t end) {
      double bytes = 0;
      for (const auto& [link, sum] : add_up_links(index, first, end))
        bytes += static_cast<double>(sum);
      return bytes;
    };
    for (size_t step = 0; step < index.steps().size(); ++step) {
      asked.input.moment = index.moment_of_step(static_cast<int32_t>(step));
      const gui::Moment moment = asked.input.moment;
      const double now = total(moment.first_stage, moment.end_stage);
      const std::string text =
          "this step: " + (now == 0 ? "no bytes" : gui::print_bytes(now)) + ", so far " +
          gui::print_bytes(total(0, moment.end_stage)) + " of " +
          gui::print_bytes(total(0, static_cast<int32_t>(index.stages().size())));
      EXPECT_TRUE(has_words(draw_traffic(asked.input), text)) << text;
    }
  });
}

TEST(TrafficView, NamesTheGroupsThatWorkInTheRound) {
  const auto index = plan_file(CPSCOPE_SOURCE_DIR "/scenarios/hybrid_sizes.toml");
  ASSERT_TRUE(index.has_value());
  Asked asked(*index, kLargeTraffic);
  asked.input.moment = index->moment_of_step(7);
  EXPECT_TRUE(has_words(draw_traffic(asked.input), "round 1 of 2, groups of ranks: 0 to 7"));
  asked.input.moment = index->moment_of_step(8);
  EXPECT_TRUE(has_words(draw_traffic(asked.input),
                        "round 2 of 2, groups of ranks: 0 to 1, 2 to 3, 4, 5, 6, 7"));
}

TEST(TrafficView, DrawsAnArrowForEachLink) {
  for_plans_of_seeds(60, [](const PlanIndex& index, uint64_t) {
    Asked asked(index, kLargeTraffic);
    for (size_t step = 0; step < index.steps().size(); ++step) {
      asked.input.moment = index.moment_of_step(static_cast<int32_t>(step));
      const auto sums =
          add_up_links(index, asked.input.moment.first_stage, asked.input.moment.end_stage);
      const View view = draw_traffic(asked.input);
      const auto arrows =
          std::count_if(view.drawing.marks.begin(), view.drawing.marks.end(), [](const auto& mark) {
            const auto* line = std::get_if<gui::Line>(&mark);
            return line != nullptr && line->has_arrow;
          });
      ASSERT_EQ(static_cast<size_t>(arrows), sums.size());
    }
  });
}

/// The box of a line of text that begins at its left edge.
gui::Box box_of(const gui::Label& label, const gui::ViewInput& input) {
  const float width = input.text_width(label.text, label.size, label.face);
  return {label.at.x, label.at.y - 0.4F * label.size, label.at.x + width,
          label.at.y + 0.4F * label.size};
}

TEST(TrafficView, WritesNoLineOverAnother) {
  for_plans_of_seeds(20, [](const PlanIndex& index, uint64_t) {
    for (float width = 200; width <= 700; width += 50) {
      for (float height = 260; height <= 560; height += 30) {
        Asked asked(index, {width, height});
        asked.input.moment = index.moment_of_stage(0);
        const View view = draw_traffic(asked.input);
        std::vector<std::pair<gui::Box, std::string>> lines;
        for (const gui::Mark& mark : view.drawing.marks) {
          const auto* label = std::get_if<gui::Label>(&mark);
          if (label == nullptr || label->anchor != gui::Anchor::left_middle) continue;
          const gui::Box box = box_of(*label, asked.input);
          for (const auto& [other, text] : lines)
            ASSERT_FALSE(box.x0 < other.x1 && other.x0 < box.x1 && box.y0 < other.y1 &&
                         other.y0 < box.y1)
                << width << " x " << height << ": \"" << label->text << "\" over \"" << text
                << "\"";
          lines.emplace_back(box, label->text);
        }
      }
    }
  });
}

TEST(TrafficView, StaysSoundUnderAnyCameraSizeAndSelection) {
  const auto look = [](const PlanIndex& index, uint64_t seed) {
    std::mt19937_64 random(seed);
    Asked asked(index, kLargeTraffic);
    for (int n = 0; n < 12; ++n) {
      asked.input.camera = random_camera(random);
      asked.input.size = n % 2 == 0 ? kLargeTraffic : random_size(random);
      asked.input.is_cumulative = random() % 2 == 0;
      asked.input.moment =
          index.moment_of_stage(static_cast<int32_t>(random() % index.stages().size()));
      asked.input.focus_rank = static_cast<int32_t>(random() % index.num_ranks());
      const int32_t other = static_cast<int32_t>(random() % index.num_ranks());
      const gui::Target targets[] = {gui::Nothing{}, gui::RankTarget{other},
                                     gui::LinkTarget{asked.input.focus_rank, other},
                                     gui::TokenRange{Side::kv, 1, 7}};
      asked.input.selection = targets[random() % std::size(targets)];
      asked.selected = gui::project(asked.input.selection, index);
      asked.hovered = gui::project(targets[random() % std::size(targets)], index);
      expect_sound(draw_traffic(asked.input));
      if (testing::Test::HasFatalFailure()) return;
    }
  };
  for_plans_of_seeds(60, look);
  // More ranks than pixels, and more links than marks.
  for (const CommType comm : {CommType::all_gather, CommType::p2p, CommType::group_cast}) {
    Scenario scenario = walker_case({1200}, 150);
    scenario.parallel.comm_type = comm;
    scenario.parallel.layout = LayoutKind::contiguous;
    const auto plan = plan_unless_refused(scenario);
    ASSERT_TRUE(plan);
    look(PlanIndex(*plan), 7);
  }
}

}  // namespace
}  // namespace cpscope::tests
