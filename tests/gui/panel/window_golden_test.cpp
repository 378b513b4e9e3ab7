// The whole window, pixel for pixel, with the built-in font: every theme, two plans side by side,
// and a scenario that is rejected.
#include "gui/app/app_state.h"
#include "gui/app/command.h"
#include "tests/gui/scenario_files.h"
#include "tests/support/golden_image.h"
#include "tests/support/hand.h"
#include "tests/support/review_picture.h"

#include <memory>
#include <string>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::AppState;
using gui::ThemeName;

std::unique_ptr<AppState> open_in_theme(const std::string& name, ThemeName theme) {
  auto state = std::make_unique<AppState>();
  state->services.scenario_source = read_scenarios_of(CPSCOPE_SCENARIOS);
  state->services.scenario_names = {"zigzag", "contiguous_idle"};
  state->services.executors = {"cpu"};
  state->theme = theme;
  EXPECT_TRUE(open_shipped(*state, name));
  settle(*state);
  return state;
}

constexpr gui::Size kDisplay{1280, 800};

TEST(WindowGolden, ShowsAPaddedRingInDark) {
  const auto state = open_in_theme("thd_padding_p2p", ThemeName::dark);
  state->playhead.index = 2;
  select(*state, gui::RankTarget{1});
  Hand hand(*state, {.size = kDisplay});
  if (const auto why = expect_golden("window_dark", hand.picture())) GTEST_SKIP() << *why;
}

TEST(WindowGolden, ShowsAnAllToAllInLight) {
  const auto state = open_in_theme("thd_padding_a2a", ThemeName::light);
  state->playhead = {.is_by_stage = true, .index = 1};
  Hand hand(*state, {.size = kDisplay});
  if (const auto why = expect_golden("window_light", hand.picture())) GTEST_SKIP() << *why;
}

TEST(WindowGolden, ShowsALessonInPrint) {
  const auto state = open_in_theme("zigzag", ThemeName::print);
  Hand hand(*state, {.size = kDisplay});
  hand.click("lesson.list");
  hand.click("lesson/1");
  hand.click("lesson.next");
  if (const auto why = expect_golden("window_print", hand.picture())) GTEST_SKIP() << *why;
}

TEST(WindowGolden, ShowsTwoPlansSideBySide) {
  const auto state = open_in_theme("contiguous_idle", ThemeName::dark);
  Hand hand(*state, {.size = kDisplay});
  hand.key(gui::compat::key_of('P'));
  hand.click("edit/parallel.layout");
  hand.click("edit/parallel.layout/dual_chunk");
  state->playhead.index = 1;
  if (const auto why = expect_golden("window_pinned", hand.picture())) GTEST_SKIP() << *why;
}

TEST(WindowGolden, SaysWhyAScenarioIsRefused) {
  const auto state = open_in_theme("zigzag", ThemeName::light);
  Hand hand(*state, {.size = kDisplay});
  hand.click("edit/parallel.cp_comm_type");
  hand.click("edit/parallel.cp_comm_type/a2a");
  hand.click("edit/parallel.cp_size/double");
  ASSERT_TRUE(state->document.refusal().has_value());
  tell(*state, "A record cannot be read: run.safetensors", true);
  if (const auto why = expect_golden("window_refused", hand.picture())) GTEST_SKIP() << *why;
}

/// Not compared; made for visual review: CPSCOPE_REVIEW=1, out/review.
TEST(WindowGolden, FitsEveryThemeScaleAndSmallDisplays) {
  struct Look {
    const char* name;
    gui::Size size;
    float scale;
  };
  for (const Look& look : {Look{"small", {1024, 640}, 1}, Look{"hidpi", {1280, 800}, 2},
                           Look{"full", {1920, 1080}, 1}}) {
    const auto state = open_in_theme("thd_padding_p2p", ThemeName::dark);
    state->playhead.index = 2;
    select(*state, gui::RankTarget{1});
    Hand hand(*state, {.size = look.size, .scale = look.scale, .fonts = gui::FontChoice::packages});
    for (const ThemeName theme : gui::kThemeNames) {
      state->theme = theme;
      const gui::Image image = hand.picture();
      EXPECT_EQ(image.width, static_cast<int32_t>(look.size.width * look.scale));
      save_png_for_review("window_" + std::string(look.name) + "_" + std::string(to_name(theme)),
                          image);
    }
  }
}

}  // namespace
}  // namespace cpscope::tests
