// The whole window, driven by simulated input that finds widgets by name. No display.
#include "gui/app/app_state.h"
#include "gui/app/command.h"
#include "tests/gui/scenario_files.h"
#include "tests/support/hand.h"
#include "tests/support/review_picture.h"

#include <string>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::AppState;

std::unique_ptr<AppState> open_example(const std::string& name) {
  return open_example_of(CPSCOPE_SCENARIOS, name);
}

using gui::compat::Key;
using gui::compat::Mods;

TEST(Screen, MovesThePlayheadByButtonsKeysAndTrack) {
  const auto state = open_example("zigzag");
  Hand hand(*state);
  const auto steps = static_cast<int32_t>(state->plan()->steps().size());
  hand.click("step.next");
  EXPECT_EQ(state->playhead.index, 1);
  hand.key(Key::right);
  EXPECT_EQ(state->playhead.index, 2);
  hand.key(Key::left);
  EXPECT_EQ(state->playhead.index, 1);
  hand.click("step.last");
  EXPECT_EQ(state->playhead.index, steps - 1);
  const auto track = hand.find("track");
  ASSERT_TRUE(track.has_value());
  hand.click_at({track->x0 + track->width() * 2.5f / static_cast<float>(steps), track->center().y});
  EXPECT_EQ(state->playhead.index, 2);
  hand.key(Key::home);
  EXPECT_EQ(state->playhead.index, 0);
  hand.key(Key::space);
  EXPECT_TRUE(state->player.is_playing);
  EXPECT_TRUE(hand.wait_until([&] { return state->playhead.index >= 2; }));
  hand.click("play");
  EXPECT_FALSE(state->player.is_playing);
  hand.click("play.unit");
  EXPECT_TRUE(state->playhead.is_by_stage);
}

TEST(Screen, PredictsTimesOnTheClusterThatIsChosen) {
  const auto state = open_example("thd_padding_p2p");
  Result<Cluster> cluster = load_cluster("h200x8", CPSCOPE_SCENARIOS "/clusters");
  ASSERT_TRUE(cluster.ok());
  const std::string stack = cluster.value().stacks.front().name;
  state->services.clusters = {std::move(cluster).value()};
  Hand hand(*state);
  hand.click("timeline/cluster");
  hand.click("timeline/cluster/h200x8/" + stack);
  hand.settle();
  ASSERT_NE(state->prediction.run, nullptr);
  EXPECT_TRUE(state->shows_time);
  hand.click("edit/parallel.cp_size/double");
  hand.settle();
  EXPECT_EQ(state->prediction.plan, state->document.plan());
  hand.click("timeline/unit/off");
  EXPECT_FALSE(state->shows_time);
  hand.click("timeline/cluster");
  hand.click("timeline/cluster/none");
  EXPECT_EQ(state->prediction.run, nullptr);
}

TEST(Screen, ReplansAtEveryEditAndTakesItBack) {
  const auto state = open_example("zigzag");
  Hand hand(*state);
  hand.click("edit/parallel.cp_size/double");
  EXPECT_EQ(state->document.scenario().parallel.cp_size, 8);
  EXPECT_EQ(state->plan()->num_ranks(), 8);
  hand.click("edit/parallel.layout");
  hand.click("edit/parallel.layout/striped");
  EXPECT_EQ(state->plan()->plan().layout.kind, LayoutKind::striped);
  hand.click("edit.undo");
  EXPECT_EQ(state->plan()->plan().layout.kind, LayoutKind::dual_chunk);
  hand.key(gui::compat::key_of('Z'), Mods{.ctrl = true});
  EXPECT_EQ(state->plan()->num_ranks(), 4);
  hand.key(gui::compat::key_of('Y'), Mods{.ctrl = true});
  EXPECT_EQ(state->plan()->num_ranks(), 8);
}

TEST(Screen, TakesTypedLengthsAsSoonAsTheyAreNumbers) {
  const auto state = open_example("zigzag");
  Hand hand(*state);
  hand.click("edit/batch.lengths");
  hand.key(gui::compat::key_of('A'), Mods{.ctrl = true});
  hand.type("64");
  EXPECT_EQ(state->document.scenario().batch.lengths, (std::vector<int64_t>{64}));
  hand.type(", x");
  EXPECT_EQ(state->document.scenario().batch.lengths, (std::vector<int64_t>{64}));
  hand.key(Key::backspace);
  hand.type("64");
  EXPECT_EQ(state->document.scenario().batch.lengths, (std::vector<int64_t>{64, 64}));
  hand.key(Key::enter);
  EXPECT_EQ(state->plan()->plan().layout.slots.sequences.size(), 2u);
  hand.click("edit.undo");
  EXPECT_EQ(state->plan()->plan().layout.slots.sequences.size(), 1u) << "typing is one change";
}

TEST(Screen, KeepsThePictureOfTheLastPlanWhenAnEditIsRefused) {
  const auto state = open_example("zigzag");
  Hand hand(*state);
  const gui::SharedPlan before = state->document.plan();
  hand.click("edit/parallel.cp_comm_type");
  hand.click("edit/parallel.cp_comm_type/a2a");
  EXPECT_FALSE(state->document.refusal().has_value());
  hand.click("edit/parallel.cp_size/double");
  const gui::SharedPlan shown = state->document.plan();
  ASSERT_TRUE(state->document.refusal().has_value()) << "4 heads on 8 ranks";
  EXPECT_NE(shown, before);
  EXPECT_EQ(state->plan()->num_ranks(), 4) << "the picture stays";
  hand.click("edit.undo");
  EXPECT_FALSE(state->document.refusal().has_value());
}

TEST(Screen, SelectsWhatIsClickedAndLightsWhatIsHovered) {
  const auto state = open_example("zigzag");
  Hand hand(*state);
  hand.move_to("layout/rank/2");
  EXPECT_EQ(state->hovered, gui::Target(gui::RankTarget{2}));
  hand.click("layout/rank/2");
  EXPECT_EQ(state->selected(), gui::Target(gui::RankTarget{2}));
  hand.key(Key::escape);
  EXPECT_EQ(state->selected(), gui::Target(gui::Nothing{}));
}

TEST(Screen, ZoomsAtTheMouseAndShowsEverythingAgain) {
  const auto state = open_example("zigzag");
  Hand hand(*state);
  hand.wheel("layout/canvas", 5);
  const gui::AxisSpan x = state->camera(gui::ViewKind::layout).x;
  EXPECT_NEAR(x.hi - x.lo, 0.32768, 1e-6);
  const auto canvas = hand.find("layout/canvas");
  ASSERT_TRUE(canvas.has_value());
  hand.drag(canvas->center(), {canvas->center().x + 200, canvas->center().y});
  EXPECT_LT(state->camera(gui::ViewKind::layout).x.lo, x.lo);
  EXPECT_EQ(state->selected(), gui::Target(gui::Nothing{})) << "a drag selects nothing";
  hand.click("menu/View");
  hand.click("menu/View/view.whole");
  EXPECT_EQ(state->camera(gui::ViewKind::layout), gui::Camera{});
}

TEST(Screen, OffersEveryCommandInItsMenu) {
  const auto state = open_example("zigzag");
  Hand hand(*state);
  for (const std::string_view menu : gui::all_menus()) {
    hand.click("menu/" + std::string(menu));
    for (const gui::Command& command : gui::all_commands()) {
      if (command.menu != menu) continue;
      EXPECT_NE(hand.hits().find("menu/" + std::string(menu) + "/" + std::string(command.id)),
                nullptr)
          << command.id;
    }
    hand.key(Key::escape);
    hand.click_at({700, 890});
  }
}

TEST(Screen, ShowsAPinnedPlanAboveTheNextOne) {
  const auto state = open_example("contiguous_idle");
  Hand hand(*state, {.size = {1920, 1080}, .fonts = gui::FontChoice::packages});
  hand.key(gui::compat::key_of('P'));
  ASSERT_EQ(state->pinned.size(), 1u);
  hand.click("edit/parallel.layout");
  hand.click("edit/parallel.layout/dual_chunk");
  EXPECT_EQ(state->pinned[0]->plan().layout.kind, LayoutKind::contiguous);
  EXPECT_EQ(state->plan()->plan().layout.kind, LayoutKind::dual_chunk);
  const auto rank = hand.find("pinned/0/layout/rank/2");
  ASSERT_TRUE(rank.has_value());
  hand.click_at({rank->x0 + 4, rank->center().y});
  EXPECT_EQ(state->selected(), gui::Target(gui::RankTarget{2}));
  save_png_for_review("screen_pinned", hand.picture());
  hand.click("compare.unpin");
  EXPECT_EQ(hand.hits().find("pinned/0/layout"), nullptr);
}

TEST(Screen, ShowsFourPlansBelowEachOtherWithTheirFigures) {
  for (const gui::Size size : {gui::Size{1366, 768}, gui::Size{1920, 1080}}) {
    const auto state = open_example("contiguous_idle");
    Hand hand(*state, {.size = size, .fonts = gui::FontChoice::packages});
    for (const char* layout : {"dual_chunk", "striped", "dual_chunk_packed"}) {
      hand.key(gui::compat::key_of('P'));
      hand.click("edit/parallel.layout");
      hand.click(std::string("edit/parallel.layout/") + layout);
    }
    ASSERT_EQ(state->pinned.size(), gui::kMostPinned);
    EXPECT_FALSE(apply_command(*state, "compare.pin")) << "four are compared at most";
    // The steps of all plans are below each other.
    const auto own = hand.find("timeline/canvas");
    ASSERT_TRUE(own);
    for (const char* which : {"0", "1", "2"}) {
      const auto canvas = hand.find("pinned/" + std::string(which) + "/timeline/canvas");
      ASSERT_TRUE(canvas);
      EXPECT_EQ(canvas->x0, own->x0);
      EXPECT_EQ(canvas->x1, own->x1);
      EXPECT_GE(canvas->height(), 100) << "the height that a timeline needs";
      EXPECT_TRUE(hand.find("pinned/" + std::string(which) + "/timeline/rank/3"));
    }
    EXPECT_TRUE(hand.find("comparison/3/7"));
    save_png_for_review("screen_four_plans_" + std::to_string(static_cast<int>(size.width)),
                        hand.picture());
    hand.click("comparison/unpin/1");
    ASSERT_EQ(state->pinned.size(), 2u);
    EXPECT_EQ(state->pinned[1]->plan().layout.kind, LayoutKind::striped);
    EXPECT_EQ(hand.hits().find("pinned/2/timeline"), nullptr);
  }
}

TEST(Screen, OpensLessonsAndTurnsTheirPages) {
  const auto state = open_example("zigzag");
  Hand hand(*state);
  hand.click("lesson.list");
  hand.click("lesson/0");
  EXPECT_EQ(state->lesson, (gui::LessonPlace{0, 0}));
  EXPECT_NE(hand.hits().find("lesson"), nullptr);
  hand.click("lesson.next");
  EXPECT_EQ(state->lesson.step, 1);
  hand.click("lesson.close");
  EXPECT_EQ(state->lesson.lesson, -1);
}

TEST(Screen, SaysWhatToDoWithoutAScenario) {
  AppState state;
  Hand hand(state);
  EXPECT_NE(hand.hits().find("editor"), nullptr);
  EXPECT_EQ(hand.hits().find("track"), nullptr);
  save_png_for_review("screen_empty", hand.picture());
}

TEST(Screen, FitsNarrowAndWideDisplays) {
  for (const gui::Size size : {gui::Size{640, 480}, gui::Size{1280, 720}, gui::Size{3840, 2160}}) {
    const auto state = open_example("thd_padding_a2a");
    Hand hand(*state, {.size = size, .fonts = gui::FontChoice::packages});
    for (const auto& [name, box] : hand.hits().all()) {
      if (name.find('/') != std::string::npos) continue;
      EXPECT_LE(box.y0, size.height) << name << " at " << size.width;
    }
    save_png_for_review("screen_" + std::to_string(static_cast<int>(size.width)), hand.picture());
  }
}

TEST(Screen, LooksAfterAChangeOfScaleAsIfItHadBegunWithIt) {
  // A window is dragged to a screen with a higher pixel density: fonts are made again, the panels
  // stay.
  const auto state = open_example("thd_padding_p2p");
  gui::Screen screen, fresh;
  double now_s = 0;
  const auto show = [&](gui::Screen& on, gui::Offscreen& offscreen) {
    for (int frame = 0; frame < 12; ++frame) {
      offscreen.frame(
          [&] { on.build(*state, offscreen.fonts(), offscreen.textures(), now_s += 1.0 / 60); });
    }
    return offscreen.draw();
  };
  gui::Offscreen fine({.size = {1300, 800}, .scale = 2});
  // The same number of logical pixels: only the text widths depend on the scale.
  for (const float scale : {1.0f, 1.25f, 2.0f}) {
    gui::Offscreen offscreen({.size = {1300, 800}, .scale = scale});
    const gui::Image picture = show(screen, offscreen);
    if (scale < 2) continue;
    EXPECT_TRUE(picture == show(fresh, fine));
  }
}

TEST(Screen, ShowsEveryShippedScenarioInEveryTheme) {
  for (const char* name : {"zigzag", "thd_padding_a2a", "packed_group_cast", "cross_attention"}) {
    const auto state = open_example(name);
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
