#include "gui/window/screenshot.h"

#include "gui/app/prediction.h"
#include "gui/app/ways.h"
#include "gui/draw/png_file.h"
#include "gui/panel/offscreen.h"
#include "gui/panel/screen.h"
#include "gui/window/animate.h"
#include "gui/window/paint_picture.h"
#include "gui/window/view_file.h"
#include "sim/base/version.h"
#include "sim/base/whole_file.h"
#include "sim/plan/plan.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <utility>

namespace cpscope::gui {
namespace {

constexpr double kFrameTime = 1.0 / 60;
constexpr int32_t kMostFrames = 600;

Direction direction_of(const PlanIndex& plan, const Playhead& playhead) {
  return plan.steps()[static_cast<size_t>(step_of(plan, playhead))].direction;
}

/// "zigzag" of "scenarios/zigzag.toml"; characters that are unsuitable for file names become "_".
std::string short_name(const AppState& state) {
  std::string name = std::filesystem::path(state.document.path()).stem().string();
  std::replace_if(
      name.begin(), name.end(),
      [](unsigned char letter) { return std::isalnum(letter) == 0 && letter != '-'; }, '_');
  return name.empty() ? "window" : name;
}

/// A file name that is not in use yet, without extension.
std::string free_name(const std::string& name) {
  for (int32_t number = 1;; ++number) {
    const std::string candidate = "cpscope-" + name + "-" + std::to_string(number);
    if (!std::filesystem::exists(candidate + ".png") &&
        !std::filesystem::exists(candidate + ".json"))
      return candidate;
  }
}

}  // namespace

Image paint_screen(AppState& state, const ScreenshotOptions& options) {
  Offscreen offscreen(
      {options.size, options.scale, options.fonts, theme_of(state.theme).of(Role::background)});
  Screen screen;
  double now_s = state.now_s;
  const auto build = [&] { screen.build(state, offscreen.fonts(), offscreen.textures(), now_s); };
  settle(state);
  wait_for_prediction(state);
  wait_for_ways(state);
  for (int32_t frame = 0; frame < kMostFrames; ++frame) {
    offscreen.frame(build);
    if (frame > 2 && !screen.is_busy(state)) break;
    // Playback is paused for the picture.
    if (!state.player.is_playing) now_s += kFrameTime;
    if (frame > 4 && state.player.is_playing) break;
  }
  return offscreen.draw();
}

Result<size_t> write_screenshot(AppState& state, const ScreenshotOptions& options,
                                const std::string& path) {
  const Image image = paint_screen(state, options);
  std::vector<PngText> texts = {{"Software", "cpscope " + program_version()},
                                {"state", save_state(state)}};
  if (const PlanIndex* plan = state.plan())
    texts.push_back({"plan_hash", to_hex(plan->plan().hash)});
  return write_png(path, image, texts);
}

/// Writes the steps of the focused view, of the pass of the moment, as `cpscope render --animate`
/// draws them.
Result<size_t> write_animation(AppState& state, const ScreenshotOptions& options,
                               const std::string& path) {
  const PlanIndex& plan = *state.plan();
  if (state.shows_ways || plan.is_large()) {
    return make_error(ErrorKind::unavailable,
                      state.shows_ways ? "The page of ways does not move"
                                       : "This plan is too large to be animated here",
                      "cpscope render --animate writes the steps of any plan");
  }
  const Result<ViewPicture> view = picture_of_view(state, kAnimatedCaption);
  if (!view) return view.error();
  const bool is_forward = direction_of(plan, state.playhead) == Direction::forward;
  const Result<PaintedAnimation> painted =
      paint_animation(state, view.value().compose, view.value().size, options.fonts, 1,
                      {.has_forward = is_forward, .has_backward = !is_forward});
  if (!painted) return painted.error();
  const Result<std::string> bytes =
      painted.value().writer.finish({{"Title", painted.value().picture.title},
                                     {"Description", describe(painted.value())},
                                     {"Software", "cpscope " + program_version()},
                                     {"plan_hash", to_hex(plan.plan().hash)}});
  if (!bytes) return bytes.error();
  return write_whole_file(path, bytes.value(), "the animation");
}

/// Writes the focused view as `cpscope render` draws it.
Result<size_t> write_view(AppState& state, const ScreenshotOptions& options,
                          const std::string& path) {
  if (path.ends_with(".svg")) return write_view_svg(state, path);
  if (path.ends_with(".apng")) return write_animation(state, options, path);
  const Result<ViewPicture> view = picture_of_view(state);
  if (!view) return view.error();
  const PaintedPicture painted = paint_picture(view.value().compose, view.value().size, state.theme,
                                               options.fonts, options.scale);
  return write_png(path, painted.image,
                   {{"Title", painted.picture.title},
                    {"Description", painted.picture.alt},
                    {"Software", "cpscope " + program_version()},
                    {"plan_hash", to_hex(state.plan()->plan().hash)}});
}

void grant_wish(AppState& state, const ScreenshotOptions& options) {
  const ExportWish wish = std::exchange(state.wish, ExportWish::none);
  if (wish == ExportWish::picture && state.plan() != nullptr) {
    const std::string path = std::exchange(state.wish_path, "");
    const Result<size_t> written = write_view(state, options, path);
    if (!written) return tell(state, to_text(written.error()), true);
    return tell(state, "Wrote " + path);
  }
  if (wish != ExportWish::screenshot) return;
  const std::string name = free_name(short_name(state));
  const Result<size_t> picture = write_screenshot(state, options, name + ".png");
  if (!picture) return tell(state, to_text(picture.error()), true);
  const Result<size_t> saved = write_whole_file(name + ".json", save_state(state), "the state");
  if (!saved) return tell(state, to_text(saved.error()), true);
  tell(state, "Wrote " + name + ".png and " + name + ".json");
}

}  // namespace cpscope::gui
