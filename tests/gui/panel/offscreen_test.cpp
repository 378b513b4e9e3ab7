#include "gui/panel/offscreen.h"

#include "gui/panel/textures.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::gui {
namespace {

OffscreenOptions small_screen() { return {{320, 200}, 1, FontChoice::built_in, {}}; }

/// A window with a button and a text field, and their positions.
struct Form {
  int32_t clicks = 0, double_clicks = 0, keys = 0, undos = 0;
  float wheel = 0;
  std::array<char, 32> text{};
  Point button, field;

  void build() {
    ImGui::SetNextWindowPos({0, 0});
    ImGui::SetNextWindowSize({320, 200});
    ImGui::Begin("form", nullptr, ImGuiWindowFlags_NoDecoration);
    if (ImGui::Button("press")) ++clicks;
    button = middle();
    if (ImGui::IsMouseDoubleClicked(0)) ++double_clicks;
    ImGui::InputText("text", text.data(), text.size());
    field = middle();
    wheel += ImGui::GetIO().MouseWheel;
    if (compat::is_key_pressed(compat::Key::f1)) ++keys;
    if (ImGui::GetIO().KeyCtrl && compat::is_key_pressed(compat::key_of('Z'))) ++undos;
    ImGui::End();
  }

  static Point middle() {
    const ImVec2 low = ImGui::GetItemRectMin(), high = ImGui::GetItemRectMax();
    return {(low.x + high.x) / 2, (low.y + high.y) / 2};
  }
};

TEST(Offscreen, LetsHandsClickWhatTheyHit) {
  Offscreen screen(small_screen());
  Form form;
  const auto build = [&] { form.build(); };
  screen.settle(build);
  screen.click(form.button);
  screen.click(form.button);
  screen.settle(build);
  EXPECT_EQ(form.clicks, 2);
  EXPECT_EQ(form.double_clicks, 0);
  screen.click({form.button.x + 200, form.button.y});
  screen.settle(build);
  EXPECT_EQ(form.clicks, 2);
}

TEST(Offscreen, LetsHandsTypeTurnAndPressKeys) {
  Offscreen screen(small_screen());
  Form form;
  const auto build = [&] { form.build(); };
  screen.settle(build);
  screen.click(form.field);
  screen.type("chunk 42");
  screen.press_key(compat::Key::backspace);
  screen.release_key(compat::Key::backspace);
  screen.turn_wheel(2);
  screen.press_key(compat::Key::f1);
  screen.release_key(compat::Key::f1);
  screen.settle(build);
  EXPECT_STREQ(form.text.data(), "chunk 4");
  EXPECT_EQ(form.wheel, 2);
  EXPECT_EQ(form.keys, 1);
  screen.press_key(compat::key_of('Z'), {.ctrl = true});
  screen.release_key(compat::key_of('Z'));
  screen.settle(build);
  EXPECT_EQ(form.undos, 1);
  EXPECT_FALSE(screen.has_events());
}

TEST(Offscreen, TakesOneEventAFrame) {
  Offscreen screen(small_screen());
  std::vector<bool> down;
  const auto build = [&] { down.push_back(ImGui::GetIO().MouseDown[0]); };
  screen.press();
  screen.release();
  screen.press();
  for (int32_t i = 0; i < 3; ++i) screen.frame(build);
  EXPECT_EQ(down, (std::vector<bool>{true, false, true}));
}

TEST(Offscreen, GivesTheFormerContextBack) {
  EXPECT_EQ(ImGui::GetCurrentContext(), nullptr);
  {
    Offscreen one(small_screen()), other(small_screen());
    EXPECT_EQ(ImGui::GetCurrentContext(), nullptr);
    ImGui::SetCurrentContext(one.context());
    other.frame([&] { EXPECT_EQ(ImGui::GetCurrentContext(), other.context()); });
    EXPECT_EQ(ImGui::GetCurrentContext(), one.context());
    (void)other.draw();
    EXPECT_EQ(ImGui::GetCurrentContext(), one.context());
  }
  EXPECT_EQ(ImGui::GetCurrentContext(), nullptr);
}

TEST(Offscreen, DrawsTheSameWindowTwiceAlike) {
  const auto picture = [] {
    Offscreen screen(small_screen());
    Form form;
    for (int32_t i = 0; i < 3; ++i) screen.frame([&] { form.build(); });
    return screen.draw();
  };
  const Image image = picture();
  EXPECT_EQ(image.width, 320);
  EXPECT_TRUE(image == picture());
  EXPECT_FALSE(image == Image(320, 200, {}));
}

TEST(Offscreen, HasPixelsForItsScale) {
  Offscreen screen({{320, 200}, 1.5F, FontChoice::built_in, {1, 2, 3}});
  screen.frame([] {});
  const Image image = screen.draw();
  EXPECT_EQ(image.width, 480);
  EXPECT_EQ(image.height, 300);
  EXPECT_TRUE(image == Image(480, 300, {1, 2, 3}));
}

/// A device that only records its calls.
struct Device {
  std::vector<std::string> calls;
  uint64_t next = 1;

  TextureDevice functions() {
    return {[this](const Image&) {
              calls.push_back("make " + std::to_string(next));
              return next++;
            },
            [this](uint64_t id, const Image&) { calls.push_back("replace " + std::to_string(id)); },
            [this](uint64_t id) { calls.push_back("destroy " + std::to_string(id)); }};
  }
};

Pixels make_cells(uint8_t level, int32_t width = 2) {
  Pixels cells{{0, 0, 1, 1}, width, 2, {}};
  cells.colors.assign(static_cast<size_t>(width) * 2, {level, 0, 0});
  return cells;
}

TEST(Textures, SendTheSameCellsOnce) {
  Device device;
  Textures textures(device.functions());
  const uint64_t first = textures.show(make_cells(1));
  EXPECT_EQ(textures.show(make_cells(1)), first);
  EXPECT_EQ(textures.sent(), 1);
  EXPECT_NE(textures.show(make_cells(2)), first);
  for (int32_t i = 0; i < 100; ++i) {
    textures.end_frame();
    EXPECT_EQ(textures.show(make_cells(1)), first);
    EXPECT_EQ(textures.sent(), 0);
  }
  EXPECT_EQ(device.calls, (std::vector<std::string>{"make 1", "make 2", "destroy 2"}));
}

TEST(Textures, UseOnesThatNobodyShowsAgain) {
  Device device;
  Textures textures(device.functions());
  for (uint8_t level = 0; level < 20; ++level) {
    textures.show(make_cells(level));
    textures.end_frame();
  }
  int32_t made = 0;
  for (const std::string& call : device.calls) made += call.starts_with("make") ? 1 : 0;
  EXPECT_LE(made, 3);
  textures.show(make_cells(3, 5));
  EXPECT_EQ(device.calls.back(), "make " + std::to_string(made + 1));
}

TEST(Textures, NeverChangeWhatIsShownInTheSameFrame) {
  Device device;
  Textures textures(device.functions());
  const uint64_t one = textures.show(make_cells(1)), two = textures.show(make_cells(2));
  EXPECT_NE(one, two);
  textures.end_frame();
  EXPECT_NE(textures.show(make_cells(3)), one);
}

TEST(Textures, AreDestroyedWithTheirOwner) {
  Device device;
  {
    Textures textures(device.functions());
    textures.show(make_cells(1));
  }
  EXPECT_EQ(device.calls.back(), "destroy 1");
}

}  // namespace
}  // namespace cpscope::gui
