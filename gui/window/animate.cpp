#include "gui/window/animate.h"

#include "gui/panel/offscreen.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

/// The end of a step is shown as long as this many of its other frames; that of the last longer.
constexpr int32_t kRest = 5, kLastRest = 20;

/// Milliseconds of a frame that is not the end of a step.
int32_t frame_ms(const AnimationOrder& order) {
  const double exact = 1000 * order.seconds_per_step / order.frames_per_step;
  return std::clamp(static_cast<int32_t>(std::lround(exact)), 10, AnimationWriter::kLongest);
}

}  // namespace

Result<std::vector<Playhead>> list_moments(const PlanIndex& plan, const AnimationOrder& order) {
  std::vector<Playhead> moments;
  const bool is_by_stage = first_place(plan).is_by_stage;
  const int32_t places = count_places(plan, is_by_stage);
  std::vector<int32_t> wanted;
  for (int32_t place = 0; place < places; ++place) {
    const int32_t step = is_by_stage ? plan.step_of_stage(place) : place;
    const bool is_forward = plan.steps()[static_cast<size_t>(step)].direction == Direction::forward;
    if (is_forward ? order.has_forward : order.has_backward) wanted.push_back(place);
  }
  if (wanted.empty()) {
    return make_bad_input("--pass backward: this scenario has no backward pass",
                          "set backward = true in [numerics]");
  }
  const auto frames = static_cast<int64_t>(wanted.size()) * order.frames_per_step;
  if (frames > kMostAnimationFrames) {
    return make_bad_input(fmt::format("the animation would have {} frames: {} steps of {}", frames,
                                      wanted.size(), order.frames_per_step),
                          fmt::format("use at most {} of --frames-per-step",
                                      kMostAnimationFrames / static_cast<int64_t>(wanted.size())));
  }
  for (const int32_t place : wanted) {
    for (int32_t frame = 1; frame <= order.frames_per_step; ++frame)
      moments.push_back({is_by_stage, place, static_cast<double>(frame) / order.frames_per_step});
  }
  return moments;
}

std::string describe(const PaintedAnimation& animation) {
  return fmt::format("{} steps one after the other, {} frames, {:.1f} s", animation.steps,
                     animation.writer.num_frames(),
                     static_cast<double>(animation.writer.duration_ms()) / 1000);
}

Result<PaintedAnimation> paint_animation(AppState& state,
                                         const std::function<Picture(const TextWidth&)>& compose,
                                         Size size, FontChoice fonts, float scale,
                                         const AnimationOrder& order) {
  const Result<std::vector<Playhead>> moments = list_moments(*state.plan(), order);
  if (!moments) return moments.error();
  Offscreen screen({size, scale, fonts, theme_of(state.theme).of(Role::background)});
  PaintedAnimation painted;
  painted.missing_fonts = screen.fonts().missing;
  const Playhead before = state.playhead;
  const int32_t usual = frame_ms(order);
  std::optional<Error> error;
  for (const Playhead& moment : moments.value()) {
    state.playhead = moment;
    painted.picture = compose(text_width_of(screen.fonts()));
    const Image image = screen.draw(painted.picture.drawing);
    painted.pixels = {static_cast<float>(image.width), static_cast<float>(image.height)};
    const bool is_last = moment == moments.value().back();
    const bool is_end = moment.progress == 1.0 && order.frames_per_step > 1;
    const int32_t times = is_last ? kLastRest : is_end ? kRest : 1;
    error = painted.writer.add(image, std::min(times * usual, AnimationWriter::kLongest));
    if (error) break;
  }
  state.playhead = before;
  if (error) return *std::move(error);
  painted.steps = static_cast<int32_t>(moments.value().size()) / std::max(1, order.frames_per_step);
  return painted;
}

}  // namespace cpscope::gui
