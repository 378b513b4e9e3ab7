#include "gui/model/timeline/timeline_view.h"

#include "gui/model/timeline/step_table.h"
#include "tests/gui/model/numbers_cases.h"
#include "tests/gui/model/random_plans.h"
#include "tests/gui/model/timed_run.h"
#include "tests/gui/model/view_check.h"
#include "tests/gui/model/view_probe.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::HitRegion;
using gui::PlanIndex;
using gui::View;

using RankStep = std::pair<int32_t, int32_t>;  // rank, index of the step in PlanIndex::steps

/// The figures of every cell, counted one by one from the plan's items.
struct Counted {
  std::map<RankStep, int64_t> pairs, sent, received;
};

Counted count_by_cell(const PlanIndex& index) {
  Counted counted;
  for (const Direction direction : kDirections) {
    const Pass& pass = index.pass(direction);
    const int32_t first = direction == Direction::backward ? index.plan().forward.num_steps : 0;
    for (const ComputeItem& item : pass.computes)
      counted.pairs[{to_index(item.rank), first + to_index(item.step)}] += item.visible_pairs;
    for (const TransferItem& item : pass.transfers) {
      if (item.src == item.dst) continue;
      counted.sent[{to_index(item.src), first + to_index(item.step)}] += item.bytes;
      counted.received[{to_index(item.dst), first + to_index(item.step)}] += item.bytes;
    }
  }
  return counted;
}

TEST(StepTable, SumsWhatTheItemsSay) {
  for_plans_of_seeds(60, [](const PlanIndex& index, uint64_t) {
    const Counted counted = count_by_cell(index);
    const gui::StepTable table(index);
    int64_t all = 0;
    for (int32_t step = 0; step < table.num_steps(); ++step) {
      int64_t most = 0;
      std::vector<int64_t> pairs;
      for (int32_t rank = 0; rank < table.num_ranks(); ++rank) {
        const auto it = counted.pairs.find({rank, step});
        pairs.push_back(it == counted.pairs.end() ? 0 : it->second);
        ASSERT_EQ(table.pairs(step, rank), pairs.back());
        most = std::max(most, pairs.back());
        all += pairs.back();
      }
      ASSERT_EQ(table.most_pairs(step), most);
      const bool is_even =
          std::all_of(pairs.begin(), pairs.end(), [&](int64_t p) { return p == most; });
      const auto first = std::find(pairs.begin(), pairs.end(), most) - pairs.begin();
      ASSERT_EQ(table.busiest(step), is_even ? -1 : static_cast<int32_t>(first));
      int64_t sent = 0, received = 0, expected = 0;
      for (const gui::PhaseWork& phase : table.work(index, step)) {
        for (const int64_t bytes : phase.sent) sent += bytes;
        for (const int64_t bytes : phase.received) received += bytes;
      }
      for (int32_t rank = 0; rank < table.num_ranks(); ++rank) {
        const auto it = counted.sent.find({rank, step});
        if (it != counted.sent.end()) expected += it->second;
      }
      ASSERT_EQ(sent, expected);
      ASSERT_EQ(received, expected);
    }
    ASSERT_EQ(table.sum(0, table.num_steps(), 0, table.num_ranks()), all);
    ASSERT_NEAR(table.critical_path_over_ideal(Direction::forward),
                index.summary().critical_path_over_ideal, 1e-9);
  });
}

/// The place of a label, for labels in the middle of a bar.
gui::Box place_of(const gui::Label& label) {
  const float half = even_width(label.text, label.size, label.face) / 2;
  return {label.at.x - half, label.at.y - label.size / 2, label.at.x + half,
          label.at.y + label.size / 2};
}

TEST(TimelineView, WritesNoLabelOverAnotherAtAnyWidth) {
  for (const char* name : {"decode_heads", "zigzag"}) {
    const gui::SharedPlan plan = plan_shipped(name);
    for (float width = 300; width < 1500; width += 3) {
      Asked asked(*plan, {width, 420});
      asked.input.moment = plan->moment_of_step(static_cast<int32_t>(plan->steps().size()) - 1);
      std::vector<std::pair<gui::Box, std::string>> placed;
      for (const gui::Mark& mark : draw_timeline(asked.input).drawing.marks) {
        const auto* label = std::get_if<gui::Label>(&mark);
        if (label == nullptr || label->anchor != gui::Anchor::center_middle) continue;
        const gui::Box box = place_of(*label);
        for (const auto& [other, text] : placed)
          ASSERT_FALSE(box.x0 < other.x1 - 1 && other.x0 < box.x1 - 1 && box.y0 < other.y1 - 1 &&
                       other.y0 < box.y1 - 1)
              << name << ", " << width << " wide: \"" << label->text << "\" and \"" << text << '"';
        placed.emplace_back(box, label->text);
      }
    }
  }
}

TEST(StepTable, PhasesHoldEveryStageOnceInOrder) {
  for_plans_of_seeds(60, [](const PlanIndex& index, uint64_t) {
    for (size_t s = 0; s < index.steps().size(); ++s) {
      int32_t next = index.steps()[s].first_stage;
      for (const gui::PhaseWork& phase : measure_step(index, static_cast<int32_t>(s))) {
        ASSERT_EQ(phase.first_stage, next);
        next = phase.end_stage;
        // A compute is never in the same phase as the transfer that brings its inputs.
        std::vector<BufferId> arrived;
        for (int32_t n = phase.first_stage; n < phase.end_stage; ++n) {
          const gui::StageRef& stage = index.stages()[static_cast<size_t>(n)];
          const Pass& pass = index.pass(stage.direction);
          for (int64_t i = stage.begin; i < stage.end; ++i) {
            if (stage.kind == StageKind::transfer)
              arrived.push_back(pass.transfers[static_cast<size_t>(i)].to);
            if (stage.kind != StageKind::compute) continue;
            const ComputeItem& item = pass.computes[static_cast<size_t>(i)];
            for (const BufferId read : {item.q, item.kv, item.d_out})
              ASSERT_EQ(std::count(arrived.begin(), arrived.end(), read), 0);
          }
        }
      }
      ASSERT_EQ(next, index.steps()[s].end_stage);
    }
  });
}

TEST(TimelineView, BarsAreAsLongAsTheRanksShareOfTheBusiestOne) {
  size_t bars = 0;
  for_plans_of_seeds(60, [&bars](const PlanIndex& index, uint64_t) {
    const Counted counted = count_by_cell(index);
    Asked asked(index, {4000, 1200});
    const View view = draw_timeline(asked.input);
    expect_sound(view);
    const gui::Color blue = asked.input.theme->of(gui::Role::compute);
    std::map<int32_t, int64_t> most;  // [step]
    for (const auto& [cell, pairs] : counted.pairs)
      most[cell.second] = std::max(most[cell.second], pairs);
    for (int32_t rank = 0; rank < index.num_ranks(); ++rank) {
      for (int32_t step = 0; step < static_cast<int32_t>(index.steps().size()); ++step) {
        const HitRegion* cell =
            find_hit(view, "cell/" + std::to_string(rank) + "/" + std::to_string(step));
        ASSERT_NE(cell, nullptr);
        // Bars of this cell, and the outlines of waiting that complete them.
        double bar = 0, wait = 0;
        for (const gui::Mark& mark : view.drawing.marks) {
          if (const auto* box = std::get_if<gui::FilledBox>(&mark)) {
            if (box->color == blue && cell->box.contains(box->box.center()))
              bar += box->box.width();
          } else if (const auto* outline = std::get_if<gui::OutlinedBox>(&mark)) {
            if (outline->color == asked.input.theme->of(gui::Role::wait) &&
                cell->box.contains(outline->box.center()))
              wait += outline->box.width();
          }
        }
        const auto it = counted.pairs.find({rank, step});
        const int64_t pairs = it == counted.pairs.end() ? 0 : it->second;
        if (most[step] == 0) {
          ASSERT_EQ(bar, 0);
          continue;
        }
        const double share = static_cast<double>(pairs) / static_cast<double>(most[step]);
        // Less than two pixels of waiting are not drawn.
        ASSERT_NEAR(bar / (bar + wait), share, 2.1 / (bar + wait))
            << "rank " << rank << " step " << step;
        ++bars;
      }
    }
  });
  EXPECT_GT(bars, 200U);
}

TEST(TimelineView, WireBarsAreAsLongAsTheBytes) {
  size_t bars = 0;
  for_plans_of_seeds(60, [&bars](const PlanIndex& index, uint64_t) {
    Asked asked(index, {4000, 1200});
    const View view = draw_timeline(asked.input);
    const Counted counted = count_by_cell(index);
    std::map<RankStep, int64_t> sent;
    for (const HitRegion& hit : view.hits) {
      const size_t at = hit.name.find("/sent/");
      if (at == std::string::npos) continue;
      const size_t slash = hit.name.find('/', 5);
      const int32_t rank = std::stoi(hit.name.substr(5, slash - 5));
      const int32_t step = std::stoi(hit.name.substr(slash + 1, at - slash - 1));
      const auto number = static_cast<size_t>(std::stoi(hit.name.substr(at + 6)));
      const gui::StepWork work = measure_step(index, step);
      const gui::PhaseWork& phase = work.at(number);
      // The expected bytes, from the items of the phase's stages.
      std::vector<int64_t> bytes(static_cast<size_t>(index.num_ranks()), 0);
      for (int32_t s = phase.first_stage; s < phase.end_stage; ++s) {
        const gui::StageRef& stage = index.stages()[static_cast<size_t>(s)];
        if (stage.kind != StageKind::transfer) continue;
        for (int64_t i = stage.begin; i < stage.end; ++i) {
          const TransferItem& item = index.pass(stage.direction).transfers[static_cast<size_t>(i)];
          if (item.src != item.dst) bytes[static_cast<size_t>(to_index(item.src))] += item.bytes;
        }
      }
      const int64_t most = *std::max_element(bytes.begin(), bytes.end());
      // The rank that sends the most has the longest bar.
      double longest = 0;
      for (const HitRegion& other : view.hits)
        if (other.name.size() > at && other.name.starts_with("cell/") &&
            other.name.find("/" + std::to_string(step) + "/sent/" + std::to_string(number)) !=
                std::string::npos)
          longest = std::max<double>(longest, other.box.width());
      const int64_t here = bytes[static_cast<size_t>(rank)];
      ASSERT_NEAR(hit.box.width() / longest, static_cast<double>(here) / static_cast<double>(most),
                  1.1 / longest)
          << hit.name;
      sent[{rank, step}] += here;
      ++bars;
    }
    for (const auto& [cell, bytes] : counted.sent) {
      if (bytes == 0) continue;
      ASSERT_EQ(sent[cell], bytes) << "rank " << cell.first << " step " << cell.second;
    }
  });
  EXPECT_GT(bars, 200U);
}

TEST(TimelineView, SaysWhatTheCriticalPathCosts) {
  for_plans_of_seeds(30, [](const PlanIndex& index, uint64_t) {
    Asked asked(index, {4000, 600});
    const View view = draw_timeline(asked.input);
    char text[64];
    std::snprintf(text, sizeof(text), "costs %.3f x the ideal",
                  index.summary().critical_path_over_ideal);
    bool is_said = false;
    for (const gui::Mark& mark : view.drawing.marks) {
      const auto* label = std::get_if<gui::Label>(&mark);
      is_said |= label != nullptr && label->text.starts_with("forward") &&
                 label->text.find(text) != std::string::npos;
    }
    ASSERT_TRUE(is_said) << text;
  });
}

// The longest document goes round all 8 ranks; in the second round groups have 2 ranks at most.
TEST(TimelineView, ShowsWhereRoundsOfGroupsBegin) {
  const auto index = plan_file(CPSCOPE_SOURCE_DIR "/scenarios/hybrid_sizes.toml");
  ASSERT_TRUE(index.has_value());
  const gui::StepTable table(*index);
  std::vector<int32_t> begins;
  for (int32_t step = 0; step < table.num_steps(); ++step)
    if (table.begins_round(step)) begins.push_back(step);
  EXPECT_EQ(table.num_steps(), 20);
  EXPECT_EQ(begins, (std::vector<int32_t>{0, 8, 10, 18}));
  Asked asked(*index, {1600, 600});
  const View view = draw_timeline(asked.input);
  const auto thick =
      std::count_if(view.drawing.marks.begin(), view.drawing.marks.end(), [](const auto& mark) {
        const auto* line = std::get_if<gui::Line>(&mark);
        return line != nullptr && line->from.x == line->to.x && line->width == 2.0F;
      });
  EXPECT_EQ(thick, 4);
  EXPECT_TRUE(has_words(view, "forward: 10 steps in 2 rounds"));
}

TEST(TimelineView, MarksSimulatedNumbers) {
  std::mt19937_64 random(8);
  const auto plan = plan_unless_refused(random_scenario(3));
  ASSERT_TRUE(plan.has_value());
  const PlanIndex index(*plan);
  gui::RunView run = make_run(index, random);
  run.is_simulated = true;
  Asked asked(index, {1200, 500});
  asked.input.shows_time = true;
  asked.input.run_a = &run;
  const View view = draw_timeline(asked.input);
  int durations = 0;
  bool says_predicted = false;
  for (const gui::Mark& mark : view.drawing.marks) {
    const auto* label = std::get_if<gui::Label>(&mark);
    if (label == nullptr) continue;
    const std::string& text = label->text;
    says_predicted = says_predicted || text == "predicted:";
    const bool is_duration = text.size() > 3 && (text.find(" ns") == text.size() - 3 ||
                                                 text.find(" us") == text.size() - 3);
    if (!is_duration) continue;
    EXPECT_EQ(text[0], '~') << text;
    ++durations;
  }
  EXPECT_GT(durations, 3);
  EXPECT_TRUE(says_predicted) << "the legend";
  EXPECT_NE(view.scale.find('~'), std::string::npos);
}

TEST(TimelineView, StaysSoundForAnyCameraAndSize) {
  std::mt19937_64 random(12);
  RandomSpace space;
  space.max_ranks = 16;
  for_plans_of_seeds(
      40,
      [&random](const PlanIndex& index, uint64_t) {
        const gui::RunView run = make_run(index, random);
        for (int n = 0; n < 40; ++n) {
          Asked asked(index, random_size(random));
          asked.input.camera = random_camera(random);
          const auto stages = static_cast<int32_t>(index.stages().size());
          asked.input.moment = index.moment_of_stage(static_cast<int32_t>(random() % stages));
          asked.input.shows_time = n % 2 == 0;
          asked.input.run_a = n % 4 == 0 ? &run : nullptr;
          asked.input.run_b = n % 8 == 0 ? &run : nullptr;
          asked.hovered.ranks = {0};
          asked.hovered.steps = {0};
          expect_sound(draw_timeline(asked.input));
          if (testing::Test::HasFailure()) return;
        }
      },
      space);
}

TEST(TimelineView, ShowsTwoMillionItemsOfAThousandRanks) {
  const auto index = plan_file(CPSCOPE_SOURCE_DIR "/scenarios/million_tokens.toml");
  ASSERT_TRUE(index.has_value());
  Asked asked(*index, {1920, 1080});
  const auto ms_since = [](std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
        .count();
  };
  auto start = std::chrono::steady_clock::now();
  expect_sound(draw_timeline(asked.input));
  std::printf("%.1f ms the first time\n", ms_since(start));
  start = std::chrono::steady_clock::now();
  for (int n = 0; n < 20; ++n) draw_timeline(asked.input);
  std::printf("%.2f ms from the memo\n", ms_since(start) / 20);
  std::mt19937_64 random(4);
  start = std::chrono::steady_clock::now();
  constexpr int kFrames = 200;
  for (int n = 0; n < kFrames; ++n) {
    asked.input.camera = random_camera(random);
    expect_sound(draw_timeline(asked.input));
    if (testing::Test::HasFailure()) return;
  }
  std::printf("%.2f ms a picture of random cameras\n", ms_since(start) / kFrames);
  for (const gui::Camera& camera : zoom_grid(11)) {
    asked.input.camera = camera;
    expect_sound(draw_timeline(asked.input));
    if (testing::Test::HasFailure()) return;
  }
}

TEST(TimelineView, SaysWhatToDoWithoutAPlanOrAClock) {
  const auto index = plan_file(CPSCOPE_SOURCE_DIR "/scenarios/zigzag.toml");
  ASSERT_TRUE(index.has_value());
  Asked asked(*index, {900, 300});
  asked.input.shows_time = true;
  const auto says = [](const View& view, const std::string& what) {
    return std::any_of(view.drawing.marks.begin(), view.drawing.marks.end(),
                       [&](const gui::Mark& mark) {
                         const auto* label = std::get_if<gui::Label>(&mark);
                         return label != nullptr && label->text.find(what) != std::string::npos;
                       });
  };
  EXPECT_TRUE(says(draw_timeline(asked.input), "open a record"));
  asked.input.plan = nullptr;
  EXPECT_TRUE(says(draw_timeline(asked.input), "Open a scenario"));
}

}  // namespace
}  // namespace cpscope::tests
