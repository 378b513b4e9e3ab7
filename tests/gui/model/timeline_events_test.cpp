// The timeline of a run's clock.
#include "gui/model/timeline/event_fold.h"
#include "gui/model/timeline/timeline_view.h"
#include "sim/scenario/scenario_file.h"
#include "tests/gui/model/random_plans.h"
#include "tests/gui/model/timed_run.h"
#include "tests/gui/model/view_check.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
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

TEST(EventFold, CoversAndExposesWhatEveryNanosecondSays) {
  std::mt19937_64 random(5);
  for_plans_of_seeds(25, [&random](const PlanIndex& index, uint64_t) {
    const gui::RunView run = make_run(index, random);
    const gui::EventFold fold = gui::fold_events(run.events, index);
    for (int32_t rank = 0; rank < index.num_ranks(); ++rank) {
      const auto size = static_cast<size_t>(fold.last_ns);
      std::vector<char> compute(size, 0), transfer(size, 0);
      for (const ItemEvent& event : run.events) {
        if (to_index(event.rank) != rank) continue;
        std::vector<char>* lane = event.item.kind == StageKind::compute    ? &compute
                                  : event.item.kind == StageKind::transfer ? &transfer
                                                                           : nullptr;
        for (int64_t t = event.start_ns; lane != nullptr && t < event.end_ns; ++t)
          (*lane)[static_cast<size_t>(t)] = 1;
      }
      const gui::RankEvents& events = fold.ranks[static_cast<size_t>(rank)];
      for (int n = 0; n < 20; ++n) {
        auto from = static_cast<int64_t>(random() % (size + 1));
        auto to = static_cast<int64_t>(random() % (size + 1));
        if (from > to) std::swap(from, to);
        int64_t busy = 0, exposed = 0;
        for (int64_t t = from; t < to; ++t) {
          busy += compute[static_cast<size_t>(t)];
          exposed += transfer[static_cast<size_t>(t)] > compute[static_cast<size_t>(t)] ? 1 : 0;
        }
        const auto a = static_cast<double>(from), b = static_cast<double>(to);
        ASSERT_EQ(events.lanes[0].covered(a, b), static_cast<double>(busy));
        ASSERT_EQ(events.exposed.covered(a, b), static_cast<double>(exposed));
        std::vector<float> columns(7, 0);
        events.lanes[0].cover_columns(a, (b - a) / 7, columns);
        double sum = 0;
        for (const float column : columns) sum += static_cast<double>(column);
        ASSERT_NEAR(sum, static_cast<double>(busy), 0.01 + static_cast<double>(busy) * 1e-5);
      }
    }
  });
}

TEST(TimelineView, ShowsEveryEventOfARunOnce) {
  std::mt19937_64 random(6);
  for_plans_of_seeds(25, [&random](const PlanIndex& index, uint64_t) {
    const gui::RunView run = make_run(index, random);
    const gui::EventFold fold = gui::fold_events(run.events, index);
    Asked asked(index, {200'000, 1200});
    asked.input.shows_time = true;
    asked.input.run_a = &run;
    const View view = draw_timeline(asked.input);
    expect_sound(view);
    // The box is as long as the interval that it shows, on the ruler's scale.
    const gui::HitGrid& grid = view.grids.front();
    const double per_ns = grid.box.width() / (grid.x1 - grid.x0);
    size_t shown = 0, stretches = 0;
    for (int32_t rank = 0; rank < index.num_ranks(); ++rank)
      for (const gui::BusyTimes& times : fold.ranks[static_cast<size_t>(rank)].lanes)
        for (size_t i = 0; i < times.count(); ++i) {
          ++stretches;
          const int64_t first = times.first_event(i);
          const std::string end = "/" + std::to_string(first);
          for (const HitRegion& hit : view.hits) {
            if (!hit.name.starts_with("event/a/" + std::to_string(rank) + "/")) continue;
            if (hit.name.size() < end.size() ||
                hit.name.compare(hit.name.size() - end.size(), end.size(), end) != 0)
              continue;
            ASSERT_NEAR(hit.box.width(),
                        per_ns * static_cast<double>(times.end(i) - times.start(i)), 1.2);
            ++shown;
          }
        }
    ASSERT_GT(stretches, 0U);
    ASSERT_GE(shown, stretches * 9 / 10) << "those below three pixels fold";
    ASSERT_LE(shown, stretches);
  });
}

TEST(TimelineView, FramesTheStagesOfTheMomentInNanoseconds) {
  std::mt19937_64 random(7);
  for_plans_of_seeds(25, [&random](const PlanIndex& index, uint64_t seed) {
    const gui::RunView run = make_run(index, random);
    Asked asked(index, {20'000, 600});
    asked.input.shows_time = true;
    asked.input.run_a = &run;
    const gui::Color accent = asked.input.theme->of(gui::Role::accent);
    const auto check = [&](gui::Moment moment) {
      // The events of the moment's stages, one by one.
      int64_t from = INT64_MAX, to = INT64_MIN;
      for (const ItemEvent& event : run.events) {
        for (int32_t s = moment.first_stage; s < moment.end_stage; ++s) {
          const gui::StageRef& stage = index.stages()[static_cast<size_t>(s)];
          if (stage.direction != event.item.direction || stage.kind != event.item.kind ||
              event.item.index < stage.begin || event.item.index >= stage.end)
            continue;
          from = std::min(from, event.start_ns);
          to = std::max(to, event.end_ns);
        }
      }
      if (from > to) return;
      asked.input.moment = moment;
      const View view = draw_timeline(asked.input);
      const gui::HitGrid& grid = view.grids.front();
      const double per_ns = grid.box.width() / (grid.x1 - grid.x0);
      bool is_framed = false;
      for (const gui::Mark& mark : view.drawing.marks) {
        const auto* box = std::get_if<gui::OutlinedBox>(&mark);
        if (box == nullptr || box->color != accent || box->width != 2) continue;
        is_framed = true;
        EXPECT_NEAR(box->box.x0, grid.box.x0 + per_ns * static_cast<double>(from), 1.1);
        EXPECT_NEAR(box->box.x1, grid.box.x0 + per_ns * static_cast<double>(to), 1.1);
      }
      EXPECT_TRUE(is_framed) << "seed " << seed << ", stage " << moment.first_stage;
    };
    for (int32_t s = 0; s < static_cast<int32_t>(index.stages().size()); ++s)
      check(index.moment_of_stage(s));
    for (int32_t s = 0; s < static_cast<int32_t>(index.steps().size()); ++s)
      check(index.moment_of_step(s));
  });
}

TEST(TimelineView, ShowsTheClockOfManyRanksWithinItsBudget) {
  auto loaded = load_scenario(std::string(CPSCOPE_SOURCE_DIR) + "/scenarios/million_tokens.toml");
  ASSERT_TRUE(loaded.ok());
  Scenario scenario = loaded.value().scenario;
  scenario.parallel.cp_size = 256;
  const auto plan = plan_unless_refused(scenario);
  ASSERT_TRUE(plan.has_value());
  const PlanIndex index(*plan);
  std::mt19937_64 random(9);
  const gui::RunView run = make_run(index, random);
  Asked asked(index, {1920, 1080});
  asked.input.shows_time = true;
  asked.input.run_a = &run;
  for (const gui::RunView* other : {static_cast<const gui::RunView*>(nullptr), &run}) {
    asked.input.run_b = other;
    for (const gui::Camera& camera : zoom_grid(9)) {
      asked.input.camera = camera;
      expect_sound(draw_timeline(asked.input));
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(EventFold, EndsWhereAPredictionSays) {
  std::mt19937_64 random(5);
  for_plans_of_seeds(3, [&random](const PlanIndex& index, uint64_t) {
    const gui::RunView run = make_run(index, random);
    const int64_t last = gui::fold_events(run.events, index).last_ns;
    EXPECT_EQ(gui::fold_events(run.events, index, last + 1000).last_ns, last + 1000);
    EXPECT_EQ(gui::fold_events(run.events, index, 1).last_ns, last);
  });
}

}  // namespace
}  // namespace cpscope::tests
