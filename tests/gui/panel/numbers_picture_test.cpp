// Pictures of real runs, correct ones and with injected faults, for visual review
// (CPSCOPE_REVIEW=1).
#include "gui/app/run_views.h"
#include "gui/model/balance/balance_view.h"
#include "gui/model/numbers/numbers_view.h"
#include "gui/panel/fonts.h"
#include "gui/panel/offscreen.h"
#include "tests/gui/model/numbers_cases.h"
#include "tests/support/review_picture.h"

#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope::gui {
namespace {

using tests::NumbersCase;
using tests::plan_shipped;
using tests::plant_faults;
using tests::run_shipped;
using tests::save_png_for_review;

class NumbersPicture : public testing::Test {
 protected:
  void save(const std::string& name, ViewInput input, View (*draw)(const ViewInput&)) {
    const TextWidth width = text_width_of(offscreen_.fonts());
    for (const Size size : {Size{600, 400}, Size{960, 600}}) {
      for (const ThemeName theme : {ThemeName::dark, ThemeName::light}) {
        input.text_width = width;
        input.size = size;
        input.theme = &theme_of(theme);
        const View view = draw(input);
        EXPECT_LT(view.drawing.marks.size(), kMostMarks);
        save_png_for_review(fmt::format("{}.{}", name, size.width), view.drawing, size, theme);
      }
    }
  }

  Offscreen offscreen_{{}};
  Projection nothing_;
};

ViewInput input_of_run(const PlanIndex& plan, const RunView* run, const Projection& nothing) {
  ViewInput input;
  input.plan = &plan;
  input.run_a = run;
  input.selected = input.hovered = &nothing;
  return input;
}

TEST_F(NumbersPicture, ShowsRunsAndFaults) {
  for (const char* name : {"zigzag", "thd_padding_p2p", "packed_group_cast", "contiguous_idle"}) {
    NumbersCase made = run_shipped(name);
    const PlanIndex& plan = *made.plan;
    RunView run = make_run_view(made.outcome);
    save(std::string("numbers.") + name, input_of_run(plan, &run, nothing_), draw_numbers);
    ViewInput input = input_of_run(plan, &run, nothing_);
    input.tensor = 3;
    save(std::string("numbers.dk.") + name, input, draw_numbers);
    save(std::string("balance.") + name, input, draw_balance);

    plant_faults(made);
    run = make_run_view(made.outcome);
    input.tensor = 0;
    ASSERT_FALSE(run.errors[0].worst.empty());
    const WorstRow& worst = run.errors[0].worst[1];
    input.selection = RowTarget{0, worst.token, worst.head};
    save(std::string("numbers.fault.") + name, input, draw_numbers);
  }
}

TEST_F(NumbersPicture, ShowsAMillionTokens) {
  const SharedPlan plan = plan_shipped("million_tokens");
  ViewMemo memo;
  ViewInput input = input_of_run(*plan, nullptr, nothing_);
  input.memo = &memo;
  save("balance.million_tokens", input, draw_balance);
  save("numbers.nothing", input, draw_numbers);
}

}  // namespace
}  // namespace cpscope::gui
