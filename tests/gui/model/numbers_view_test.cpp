#include "gui/model/numbers/numbers_view.h"

#include "gui/model/axis.h"
#include "gui/model/numbers/error_scale.h"
#include "sim/plan/planner/planner.h"
#include "sim/scenario/random_scenario.h"
#include "tests/gui/model/numbers_cases.h"
#include "tests/gui/model/view_probe.h"
#include "tests/support/graded_run.h"

#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::gui {
namespace {

using tests::expect_paintable;
using tests::find_hit;
using tests::has_text;
using tests::plan_shipped;
using tests::plan_unless_refused;
using tests::probe_input;
using tests::run_walker;

constexpr int64_t kTokens = 40'000;
constexpr int32_t kHeads = 6;

/// A long plan: a strided layout of many ranks.
const PlanIndex& long_plan() {
  static const SharedPlan plan = [] {
    Scenario scenario = plan_shipped("striped")->plan().scenario;
    scenario.batch.lengths = {kTokens};
    scenario.batch.kv_lengths = scenario.batch.slots = scenario.batch.kv_slots = {kTokens};
    scenario.attention.heads = scenario.attention.kv_heads = kHeads;
    scenario.numerics.backward = false;
    return std::make_shared<const PlanIndex>(plan_scenario(scenario).value());
  }();
  return *plan;
}

/// Errors of 1 % to 9 % of a row's budget, and one row with a given error.
RunView one_bad_row(int64_t token, int32_t head, double error) {
  Tensor expected{"out", {kTokens, kHeads, 1}, Dtype::fp32, {}}, seen = expected;
  std::mt19937 random(3);
  expected.values.assign(static_cast<size_t>(kTokens * kHeads), 1.0);
  seen.values = expected.values;
  TensorGrade grade;
  grade.name = "out";
  grade.budget = 1.0;
  grade.row_budgets.assign(seen.values.size(), 1.0F);
  for (double& value : seen.values)
    value += 0.01 + 0.08 * static_cast<double>(random() % 1000) / 1000;
  seen.values[static_cast<size_t>(token * kHeads + head)] = 1.0 + error;
  RunView run;
  run.name = "made";
  run.errors.push_back(measure_errors(seen, expected, "out", &grade));
  return run;
}

View draw(const PlanIndex& plan, const RunView* run, Camera camera, Size size) {
  static const Projection nothing;
  ViewInput input = probe_input(plan, nothing, size);
  input.run_a = run;
  input.camera = camera;
  return draw_numbers(input);
}

/// The picture of the heat map, and its colour at a position of the grid.
const Pixels& heat_of(const View& view) {
  for (const Mark& mark : view.drawing.marks)
    if (const auto* pixels = std::get_if<Pixels>(&mark); pixels != nullptr && pixels->height > 1)
      return *pixels;
  ADD_FAILURE() << "no heat map";
  static const Pixels none;
  return none;
}

std::optional<Color> color_at(const View& view, double head, double token) {
  const HitGrid& grid = view.grids.at(0);
  const Pixels& heat = heat_of(view);
  const double x = grid.box.x0 + (head - grid.x0) / (grid.x1 - grid.x0) * grid.box.width(),
               y = grid.box.y0 + (token - grid.y0) / (grid.y1 - grid.y0) * grid.box.height();
  if (!grid.box.contains({static_cast<float>(x), static_cast<float>(y)})) return std::nullopt;
  const auto column = static_cast<int64_t>((x - heat.box.x0) / heat.box.width() * heat.width),
             row = static_cast<int64_t>((y - heat.box.y0) / heat.box.height() * heat.height);
  if (column < 0 || row < 0 || column >= heat.width || row >= heat.height) return std::nullopt;
  return heat.colors[static_cast<size_t>(row * heat.width + column)];
}

Camera camera_around(std::mt19937& random, double around_x, double around_y) {
  const auto span = [&](double around) {
    const double width = std::pow(10.0, -static_cast<double>(random() % 400) / 100);
    const double lo = around - width * static_cast<double>(random() % 1000) / 1000;
    return AxisSpan{lo, lo + width};
  };
  return {span(around_x), span(around_y)};
}

TEST(NumbersView, ShowsOneWrongRowAtAnyZoom) {
  const Color bad = theme_of(ThemeName::dark).of(Role::error);
  std::mt19937 random(11);
  for (const double error : {1.5, std::numeric_limits<double>::quiet_NaN()}) {
    const int64_t token = 23'456;
    const int32_t head = 4;
    const RunView run = one_bad_row(token, head, error);
    int shown = 0;
    for (int round = 0; round < 60; ++round) {
      Camera camera = camera_around(random, (head + 0.5) / kHeads, (token + 0.5) / kTokens);
      if (round == 0) camera = {};
      const View view = draw(long_plan(), &run, camera, {700, 500});
      const auto color = color_at(view, head + 0.5, static_cast<double>(token) + 0.5);
      if (!color) continue;
      ++shown;
      EXPECT_TRUE(*color == bad) << "camera " << camera.y.lo << " to " << camera.y.hi;
    }
    EXPECT_GT(shown, 40);
  }
}

TEST(NumbersView, ShowsNoErrorWhereThereIsNone) {
  const Color bad = theme_of(ThemeName::dark).of(Role::error);
  const RunView run = one_bad_row(23'456, 4, 1.5);
  for (const double lo : {0.0, 0.1, 0.6, 0.9}) {
    const View view = draw(long_plan(), &run, {{}, {lo, lo + 0.1}}, {700, 500});
    for (const Color& color : heat_of(view).colors) EXPECT_FALSE(color == bad);
  }
}

TEST(NumbersView, NamesTheWorstRowsAndTensors) {
  const RunView run = one_bad_row(23'456, 4, 1.5);
  const View view = draw(long_plan(), &run, {}, {900, 600});
  const HitRegion* worst = find_hit(view, "row/23456/4");
  ASSERT_NE(worst, nullptr);
  EXPECT_EQ(worst->target, (Target{RowTarget{0, 23'456, 4}}));
  EXPECT_NE(worst->tooltip.find("seen 2.5, expected 1"), std::string::npos) << worst->tooltip;
  for (const HitRegion& hit : view.hits) {
    if (!hit.name.starts_with("row/")) continue;
    EXPECT_GE(hit.box.y0, worst->box.y0) << "it stands first";
  }
  EXPECT_NE(find_hit(view, "tensor/out"), nullptr);
  EXPECT_TRUE(has_text(view, "23 456"));
  EXPECT_TRUE(has_text(view, "!"));
}

TEST(NumbersView, SaysWhatToDoWhenNothingHasRun) {
  const View view = draw(long_plan(), nullptr, {}, {600, 400});
  EXPECT_TRUE(has_text(view, "Nothing has run yet."));
  EXPECT_TRUE(has_text(view, "Press R"));
}

TEST(NumbersView, StaysSmallAndFiniteForEveryCamera) {
  std::mt19937 random(5);
  const RunView run = one_bad_row(23'456, 4, std::numeric_limits<double>::quiet_NaN());
  for (int round = 0; round < 150; ++round) {
    const Size size{static_cast<float>(random() % 1500), static_cast<float>(random() % 1200)};
    Camera camera = camera_around(random, static_cast<double>(random() % 100) / 50 - 0.5,
                                  static_cast<double>(random() % 100) / 50 - 0.5);
    if (round % 20 == 0) camera.x.lo = std::numeric_limits<double>::quiet_NaN();
    if (round % 30 == 0) std::swap(camera.y.lo, camera.y.hi);
    expect_paintable(draw(long_plan(), &run, camera, size));
  }
}

TEST(NumbersView, ShowsRandomRunsOfEveryTensor) {
  for (uint64_t seed = 400; seed < 430; ++seed) {
    RandomSpace space;
    space.any_dtype = true;
    const Scenario scenario = random_scenario(seed, space);
    auto checked = plan_unless_refused(scenario);
    if (!checked) continue;
    CaseOutcome outcome = run_walker(scenario);
    ASSERT_EQ(outcome.status, CaseStatus::pass) << outcome.reason;
    const PlanIndex plan(std::move(*checked));
    RunView run;
    const Answer &seen = outcome.output.answer, &exact = outcome.exact;
    run.errors.push_back(measure_errors(seen.out, exact.out, "out", &outcome.grade.tensors[0]));
    run.errors.push_back(measure_errors(seen.lse, exact.lse, "lse", &outcome.grade.tensors[1]));
    if (!seen.dv.values.empty()) run.errors.push_back(measure_errors(seen.dv, exact.dv, "dv"));
    static const Projection nothing;
    for (int32_t tensor = -1; tensor < 6; ++tensor) {
      ViewInput input = probe_input(plan, nothing, {640, 420});
      input.run_a = &run;
      input.tensor = tensor;
      expect_paintable(draw_numbers(input));
    }
  }
}

TEST(NumbersView, NeverCutsTheShareOfATensor) {
  RunView run = one_bad_row(5, 0, 0.5);
  while (run.errors.size() < kErrorTensors.size()) {
    run.errors.push_back(run.errors.front());
    run.errors.back().name = kErrorTensors[run.errors.size() - 1];
  }
  for (const float width : {306.0F, 340.0F, 420.0F, 900.0F}) {
    const View view = draw(long_plan(), &run, {}, {width, 220});
    int shares = 0;
    for (const Mark& mark : view.drawing.marks) {
      const auto* label = std::get_if<Label>(&mark);
      if (label == nullptr || label->at.y > 30) continue;
      EXPECT_EQ(label->text.find(".."), std::string::npos) << label->text << " at " << width;
      shares += label->text.find('%') != std::string::npos ? 1 : 0;
    }
    EXPECT_EQ(shares, 5) << "at " << width;
  }
}

TEST(ErrorScale, GivesAShareOfABudgetOneColourInEveryRun) {
  const RunView good = one_bad_row(5, 0, 0.095), bad = one_bad_row(5, 0, 0.9);
  const Theme& theme = theme_of(ThemeName::dark);
  const ErrorScale of_good(good.errors.front(), theme), of_bad(bad.errors.front(), theme);
  for (const float share : {0.02F, 0.1F, 0.4F, 0.8F})
    EXPECT_EQ(of_good.color_of(share), of_bad.color_of(share)) << share;
  EXPECT_EQ(of_good.color_of(1.0F), theme.of_quantity(1.0)) << "brightest at the budget";
}

TEST(PrintApart, ShowsThatTwoValuesDiffer) {
  const auto [seen, expected] = print_apart(-0.598734512, -0.598734398);
  EXPECT_NE(seen, expected);
  EXPECT_EQ(print_apart(1.5, 1.5), (std::pair<std::string, std::string>{"1.5", "1.5"}));
  EXPECT_EQ(print_apart(std::nan(""), 1.5).first, "NaN");
}

TEST(NumbersView, WritesNoFigureOfATileOverItsName) {
  RunView run = one_bad_row(3, 1, 0);
  for (const char* name : {"lse", "dq", "dk", "dv"}) {
    run.errors.push_back(run.errors.front());
    run.errors.back().name = name;
  }
  static const Projection nothing;
  const TextWidth width_of = probe_input(long_plan(), nothing, {100, 100}).text_width;
  int64_t figures = 0;
  for (float width = 240; width < 1400; width += 20) {
    const View view = draw(long_plan(), &run, {}, {width, 300});
    for (const Mark& mark : view.drawing.marks) {
      const auto* name = std::get_if<Label>(&mark);
      if (name == nullptr || name->face != Face::strong || name->anchor != Anchor::left_middle)
        continue;
      const float end = name->at.x + width_of(name->text, name->size, name->face);
      for (const Mark& other : view.drawing.marks) {
        const auto* figure = std::get_if<Label>(&other);
        if (figure == nullptr || figure->anchor != Anchor::right_middle ||
            figure->at.y != name->at.y || figure->at.x < end || figure->at.x > end + width / 5)
          continue;
        EXPECT_GE(figure->at.x - width_of(figure->text, figure->size, figure->face), end)
            << figure->text << " at " << width;
        EXPECT_GE(figure->size, 9);
        ++figures;
      }
    }
  }
  EXPECT_GT(figures, 100);
}

}  // namespace
}  // namespace cpscope::gui
