#include "gui/model/balance/balance_view.h"

#include "gui/model/balance/balance.h"
#include "sim/scenario/random_scenario.h"
#include "tests/gui/model/numbers_cases.h"
#include "tests/gui/model/view_probe.h"
#include "tests/support/graded_run.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope::gui {
namespace {

using tests::expect_paintable;
using tests::find_hit;
using tests::has_text;
using tests::plan_shipped;
using tests::plan_unless_refused;
using tests::probe_input;

const Projection kNoProjection;

std::vector<SharedPlan> random_plans() {
  std::vector<SharedPlan> plans;
  for (uint64_t seed = 700; plans.size() < 25; ++seed) {
    auto plan = plan_unless_refused(random_scenario(seed));
    if (plan) plans.push_back(std::make_shared<const PlanIndex>(std::move(*plan)));
  }
  return plans;
}

/// The pairs of a rank, directly from the items.
int64_t pairs_of(const Plan& plan, int32_t rank) {
  int64_t pairs = 0;
  for (const Pass* pass : {&plan.forward, &plan.backward})
    for (const ComputeItem& item : pass->computes)
      pairs += to_index(item.rank) == rank ? item.visible_pairs : 0;
  return pairs;
}

int64_t bytes_sent(const Plan& plan, int32_t rank) {
  int64_t bytes = 0;
  for (const Pass* pass : {&plan.forward, &plan.backward})
    for (const TransferItem& item : pass->transfers)
      bytes += to_index(item.src) == rank ? item.bytes : 0;
  return bytes;
}

TEST(Balance, CountsWhatItemsDo) {
  for (const SharedPlan& index : random_plans()) {
    const Plan& plan = index->plan();
    const Balance balance = measure_balance(*index);
    for (int32_t rank = 0; rank < plan.layout.cp_size; ++rank) {
      EXPECT_EQ(balance.pairs.forward[rank] + balance.pairs.backward[rank], pairs_of(plan, rank));
      EXPECT_EQ(balance.bytes_of(rank), bytes_sent(plan, rank));
    }
    // The work of the busiest rank of every step, from the summary's own table.
    int64_t critical = 0, total = 0;
    for (const auto& step : index->summary().pairs_by_step_rank) {
      critical += *std::max_element(step.begin(), step.end());
      for (const int64_t pairs : step) total += pairs;
    }
    EXPECT_EQ(balance.critical.forward, critical);
    EXPECT_EQ(balance.total.forward, total);
    for (const BusiestRank& step : balance.steps) {
      if (step.rank < 0) continue;
      const StepRef& ref = index->steps()[static_cast<size_t>(step.step)];
      int64_t pairs = 0;
      const Pass& pass = index->pass(ref.direction);
      for (const ComputeItem& item : pass.computes)
        if (to_index(item.step) == ref.step && to_index(item.rank) == step.rank)
          pairs += item.visible_pairs;
      EXPECT_EQ(step.pairs, pairs);
    }
  }
}

/// Height of the tallest box of the chart in a column, in units of the grid.
double top_of(const View& view, const HitRegion& column, Color color) {
  const HitGrid& grid = view.grids.at(0);
  float top = grid.box.y1;
  for (const Mark& mark : view.drawing.marks) {
    const auto* box = std::get_if<FilledBox>(&mark);
    if (box == nullptr || box->box.center().x < column.box.x0 ||
        box->box.center().x >= column.box.x1 || box->box.y1 > grid.box.y1 + 0.5F ||
        box->box.width() > column.box.width() + 0.5F ||
        box->color.with_alpha(255) != color.with_alpha(255))
      continue;
    top = std::min(top, box->box.y0);
  }
  return grid.y0 + (top - grid.box.y0) / grid.box.height() * (grid.y1 - grid.y0);
}

TEST(BalanceView, DrawsBarsAsLongAsTheWork) {
  const Color color = theme_of(ThemeName::dark).of(Role::compute);
  for (const SharedPlan& index : random_plans()) {
    const View view = draw_balance(probe_input(*index, kNoProjection, {1200, 700}));
    int64_t most = 0;
    for (int32_t rank = 0; rank < index->num_ranks(); ++rank)
      most = std::max(most, pairs_of(index->plan(), rank));
    if (most == 0) continue;
    for (int32_t rank = 0; rank < index->num_ranks(); ++rank) {
      const HitRegion* hit = find_hit(view, fmt::format("rank/{}", rank));
      ASSERT_NE(hit, nullptr) << rank;
      EXPECT_EQ(hit->target, Target{RankTarget{rank}});
      const auto pairs = static_cast<double>(pairs_of(index->plan(), rank));
      EXPECT_NEAR(top_of(view, *hit, color), pairs, 0.004 * static_cast<double>(most))
          << "rank " << rank;
    }
  }
}

TEST(BalanceView, SaysWhereTheWorkIs) {
  const SharedPlan plan = plan_shipped("contiguous_idle");
  const View view = draw_balance(probe_input(*plan, kNoProjection, {960, 600}));
  EXPECT_TRUE(has_text(view, "busiest 1.7471 x the mean"));
  EXPECT_TRUE(has_text(view, "forward 1.7471 x the ideal"));
  EXPECT_TRUE(has_text(view, "768 KiB, needed: 384 KiB (50 %)"));
  const HitRegion* step = find_hit(view, "step/0");
  ASSERT_NE(step, nullptr);
  EXPECT_EQ(step->target, Target{StepTarget{0}});
  const View padded =
      draw_balance(probe_input(*plan_shipped("thd_padding_p2p"), kNoProjection, {960, 600}));
  EXPECT_TRUE(has_text(padded, "Padding: 20 of 2 896 queries, 20 of 2 896 keys (0.7 %)"));
}

TEST(BalanceView, FoldsAThousandRanksWithoutLosingOne) {
  Scenario scenario = plan_shipped("contiguous_idle")->plan().scenario;
  scenario.parallel.cp_size = 1024;
  scenario.batch.lengths = scenario.batch.kv_lengths = scenario.batch.slots =
      scenario.batch.kv_slots = {4096};
  scenario.parallel.comm_type = CommType::all_gather;
  scenario.numerics.backward = false;
  const Result<CheckedPlan> checked = plan_scenario(scenario);
  ASSERT_TRUE(checked.ok()) << to_text(checked.error());
  const PlanIndex index(checked.value());
  const View view = draw_balance(probe_input(index, kNoProjection, {500, 400}));
  expect_paintable(view);
  // Contiguous and causal: the last rank has the most work, and its column shows it.
  const HitRegion* last = find_hit(view, "rank/1023");
  ASSERT_NE(last, nullptr);
  const auto pairs = static_cast<double>(pairs_of(index.plan(), 1023));
  EXPECT_NEAR(top_of(view, *last, theme_of(ThemeName::dark).of(Role::compute)), pairs,
              0.02 * pairs);
}

TEST(BalanceView, StaysSmallAndFiniteForEveryCamera) {
  std::mt19937 random(9);
  const std::vector<SharedPlan> plans = random_plans();
  ViewMemo memo;
  for (int round = 0; round < 200; ++round) {
    const PlanIndex& plan = *plans[random() % plans.size()];
    ViewInput input =
        probe_input(plan, kNoProjection,
                    {static_cast<float>(random() % 1500), static_cast<float>(random() % 1000)});
    const double lo = static_cast<double>(random() % 300) / 200 - 0.4;
    input.camera.x = {lo, lo + std::pow(10.0, -static_cast<double>(random() % 300) / 50)};
    if (round % 25 == 0) input.camera.x.hi = std::numeric_limits<double>::quiet_NaN();
    input.memo = round % 2 == 0 ? &memo : nullptr;
    expect_paintable(draw_balance(input));
  }
}

TEST(BalanceView, ShowsWhereRoundsBeginAndWhichRanksWorkTogetherNow) {
  const SharedPlan plan = plan_shipped("hybrid_sizes");
  ViewInput input = probe_input(*plan, kNoProjection, {1200, 620});
  const Color color = input.theme->of(Role::transfer);
  // Lines under the bars of both charts, and of the rounds that begin in both passes.
  const auto count = [&](const View& view) {
    std::pair<size_t, size_t> found;
    for (const Mark& mark : view.drawing.marks) {
      const auto* box = std::get_if<FilledBox>(&mark);
      const auto* line = std::get_if<Line>(&mark);
      found.first += box != nullptr && box->color == color && box->box.height() == 3;
      found.second += line != nullptr && line->color == color;
    }
    return found;
  };
  input.moment = plan->moment_of_step(0);
  EXPECT_EQ(count(draw_balance(input)), std::pair(size_t{2 * 1}, size_t{2}));
  input.moment = plan->moment_of_step(8);
  const View view = draw_balance(input);
  EXPECT_EQ(count(view), std::pair(size_t{2 * 6}, size_t{2}));
  EXPECT_NE(view.title.find(", round 2 of 2"), std::string::npos) << view.title;
  EXPECT_TRUE(has_text(view, "round 2: r4"));
  const HitRegion* step = find_hit(view, "step/8");
  ASSERT_NE(step, nullptr);
  EXPECT_NE(step->tooltip.find("round 2 of 2"), std::string::npos) << step->tooltip;
  const SharedPlan whole = plan_shipped("zigzag");
  const View without = draw_balance(probe_input(*whole, kNoProjection, {1200, 620}));
  EXPECT_EQ(count(without), std::pair(size_t{0}, size_t{0}));
  EXPECT_EQ(without.title.find("round"), std::string::npos);
}

TEST(BalanceView, KeepsItsBarsInALowPanel) {
  for (const char* name : {"zigzag", "thd_padding_p2p"}) {
    const SharedPlan plan = plan_shipped(name);
    for (const Size size : {Size{260, 150}, Size{260, 190}, Size{260, 230}, Size{560, 150}}) {
      const View view = draw_balance(probe_input(*plan, kNoProjection, size));
      const HitRegion* bar = find_hit(view, "rank/0");
      ASSERT_NE(bar, nullptr) << name << " at " << size.width << " x " << size.height;
      EXPECT_GE(bar->box.height(), 20) << name << " at " << size.height;
    }
  }
}

}  // namespace
}  // namespace cpscope::gui
