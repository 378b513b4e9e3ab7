// The whole window, driven by hands that find widgets by name. No display.
#include "gui/app/app_state.h"
#include "gui/app/command.h"
#include "tests/support/hand.h"
#include "tests/support/review_picture.h"

#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::AppState;

std::optional<std::string> read_shipped(std::string_view name) {
  std::ifstream file(CPSCOPE_SCENARIOS "/" + std::string(name) + ".toml");
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// A state with a shipped scenario open.
std::unique_ptr<AppState> open(const std::string& name) {
  auto state = std::make_unique<AppState>();
  state->services.scenario_source = read_shipped;
  state->services.scenario_names = {"zigzag", "contiguous_idle", "thd_padding_p2p"};
  EXPECT_TRUE(open_shipped(*state, name));
  settle(*state);
  return state;
}

TEST(Screen, ShowsEveryShippedScenarioInEveryTheme) {
  for (const char* name : {"zigzag", "thd_padding_a2a"}) {
    const auto state = open(name);
    Hand hand(*state, {.size = {1920, 1080}, .fonts = gui::FontChoice::packages});
    for (const gui::ThemeName theme : gui::kThemeNames) {
      state->theme = theme;
      save_png_for_review("screen_" + std::string(name) + "_" + std::string(to_name(theme)),
                          hand.picture());
    }
  }
}

}  // namespace
}  // namespace cpscope::tests
