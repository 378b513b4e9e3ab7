#include "gui/app/document/player.h"

#include "gui/app/app_state.h"
#include "sim/scenario/random_scenario.h"
#include "sim/scenario/scenario_file.h"
#include "tests/support/graded_run.h"
#include "tests/support/walker_cases.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::PlanIndex;
using gui::Player;
using gui::Playhead;

PlanIndex ring_of_4() { return PlanIndex(*plan_unless_refused(walker_case({64}, 4))); }
PlanIndex exchange_of_4() {
  Scenario scenario = walker_case({64}, 4);
  scenario.parallel.comm_type = CommType::a2a;
  return PlanIndex(*plan_unless_refused(scenario));
}

TEST(Player, EveryPlaceReachedBackwardsEqualsAFreshSeek) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const auto plan = plan_unless_refused(random_scenario(seed));
    if (!plan) continue;
    const PlanIndex index(*plan);
    for (const bool by_stage : {false, true}) {
      const int32_t count = count_places(index, by_stage);
      Playhead walked = step_by(index, Playhead{by_stage}, count + 5);
      for (int32_t place = count - 1; place >= 0; --place) {
        const Playhead sought = by_stage ? seek_stage(index, Playhead{true}, place)
                                         : seek_step(index, Playhead{false}, place);
        ASSERT_EQ(walked, sought) << "seed " << seed << " place " << place;
        ASSERT_EQ(moment_of(index, walked), moment_of(index, sought));
        walked = step_by(index, walked, -1);
      }
      EXPECT_EQ(walked.index, 0) << "the first place has none before it";
    }
  }
}

TEST(Player, PlayingForwardsAndBackwardsMeetsTheSamePlaces) {
  const PlanIndex index = ring_of_4();
  const int32_t count = count_places(index, true);
  for (int32_t place = 0; place < count; ++place) {
    // The middle of a place, approached from both sides.
    const double middle = place + 0.5;
    Player forwards{true, 4.0, 0.0, 100.0};
    Player backwards{true, -4.0, static_cast<double>(count), 100.0};
    const Playhead a = play_until(index, Playhead{true}, forwards, 100.0 + middle / 4.0);
    const Playhead b = play_until(index, Playhead{true}, backwards, 100.0 + (count - middle) / 4.0);
    EXPECT_EQ(a.index, place);
    EXPECT_EQ(b.index, place);
    EXPECT_NEAR(a.progress, b.progress, 1e-9);
  }
}

TEST(Player, PlaysAsFarHoweverOftenItIsAsked) {
  const PlanIndex index = ring_of_4();
  Player once = start_playing(index, Playhead{true}, 3.0, 5.0);
  Player often = once;
  Playhead seen{true};
  for (int frame = 0; frame <= 120; ++frame)
    seen = play_until(index, seen, often, 5.0 + frame / 60.0);
  EXPECT_EQ(seen, play_until(index, Playhead{true}, once, 7.0));
}

TEST(Player, StopsAtTheEndAndBeginsAgainFromThere) {
  const PlanIndex index = ring_of_4();
  Player player = start_playing(index, Playhead{}, 2.0, 0.0);
  Playhead end = play_until(index, Playhead{}, player, 1e6);
  EXPECT_FALSE(player.is_playing);
  EXPECT_EQ(end, (Playhead{false, count_places(index, false) - 1, 1.0}));
  player = start_playing(index, end, 2.0, 0.0);
  EXPECT_EQ(play_until(index, end, player, 0.25), (Playhead{false, 0, 0.5}));
  player = start_playing(index, Playhead{}, -1.0, 0.0);
  EXPECT_EQ(play_until(index, Playhead{}, player, 0.25).index, count_places(index, false) - 1);
}

TEST(Player, ShowsProgressOnlyWhereSomethingIsReordered) {
  const PlanIndex ring = ring_of_4(), exchange = exchange_of_4();
  EXPECT_EQ(reorder_progress(ring, {true, 0, 0.25}), 1.0);
  int reorders = 0;
  for (int32_t s = 0; s < count_places(exchange, true); ++s) {
    const bool is_reorder = exchange.stages()[s].kind == StageKind::reorder;
    reorders += is_reorder ? 1 : 0;
    EXPECT_EQ(reorder_progress(exchange, {true, s, 0.25}), is_reorder ? 0.25 : 1.0);
  }
  EXPECT_EQ(reorders, 4);
}

TEST(Player, TellsAScheduleOfOneStepStageByStage) {
  Scenario scenario = walker_case({64}, 4);
  const PlanIndex ring(plan_unless_refused(scenario).value());
  EXPECT_EQ(gui::first_place(ring), (Playhead{false, 0, 1.0}));
  scenario.parallel.comm_type = CommType::a2a;
  const PlanIndex exchange(plan_unless_refused(scenario).value());
  EXPECT_EQ(gui::first_place(exchange), (Playhead{true, 0, 1.0}));
  // Opening a scenario moves the playhead there; editing leaves it where it is.
  gui::AppState state;
  state.services.scenario_source = [&](std::string_view name) {
    Scenario other = scenario;
    if (name == "ring") other.parallel.comm_type = CommType::p2p;
    return std::optional<std::string>(print_scenario(other));
  };
  ASSERT_TRUE(open_shipped(state, "exchange"));
  settle(state);
  EXPECT_EQ(state.playhead, (Playhead{true, 0, 1.0}));
  state.playhead.index = 3;
  Scenario edited = state.document.scenario();
  edited.parallel.cp_size = 2;
  edit_scenario(state, edited, "parallel.cp_size");
  settle(state);
  EXPECT_EQ(state.playhead.index, 3);
  ASSERT_TRUE(open_shipped(state, "ring"));
  settle(state);
  EXPECT_EQ(state.playhead, (Playhead{false, 0, 1.0}));
}

TEST(Player, SwitchesBetweenStepsAndStages) {
  const PlanIndex index = ring_of_4();
  for (int32_t step = 0; step < count_places(index, false); ++step) {
    const Playhead stage = switch_unit(index, {false, step});
    EXPECT_EQ(stage.index, index.steps()[step].first_stage);
    EXPECT_EQ(switch_unit(index, stage), (Playhead{false, step}));
  }
}

TEST(Player, FindsTheNextEventOfARank) {
  Scenario scenario = walker_case({64}, 4);
  scenario.parallel.layout = LayoutKind::contiguous;
  scenario.numerics.backward = false;
  const PlanIndex index(*plan_unless_refused(scenario));
  // Rank 0 computes only in step 0, but forwards KV and finishes at the end.
  Playhead at{true, 0};
  std::vector<StageKind> kinds;
  while (true) {
    const Playhead next = seek_event(index, at, 0, true);
    if (next == at) break;
    at = next;
    kinds.push_back(index.stages()[at.index].kind);
  }
  EXPECT_EQ(std::count(kinds.begin(), kinds.end(), StageKind::compute), 1);
  EXPECT_EQ(std::count(kinds.begin(), kinds.end(), StageKind::transfer), 2);
  EXPECT_EQ(kinds.back(), StageKind::finish);
  EXPECT_EQ(seek_event(index, at, 0, true), at);
  EXPECT_LT(seek_event(index, at, 0, false).index, at.index);
}

TEST(Player, KeepsThePlayheadInsideASmallerPlan) {
  const PlanIndex index = exchange_of_4();
  EXPECT_EQ(clamp_to(index, {false, 99}), (Playhead{false, 1}));
  EXPECT_EQ(clamp_to(index, {true, -3, 0.5}), (Playhead{true, 0, 1.0}));
}

}  // namespace
}  // namespace cpscope::tests
