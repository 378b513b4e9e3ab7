#pragma once

#include "gui/app/app_state.h"
#include "gui/draw/animation_file.h"
#include "gui/draw/png_file.h"
#include "gui/panel/fonts.h"
#include "gui/window/animation_order.h"
#include "gui/window/picture.h"
#include "sim/base/result.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace cpscope::gui {

/// An animation whose frames are painted but not yet written.
struct PaintedAnimation {
  AnimationWriter writer;
  Picture picture;            // the last frame
  Size pixels;                // of a frame
  std::string missing_fonts;  // a sentence, or empty
  int32_t steps = 0;          // of a plan of one step: its stages
};

/// The moments of the frames: every step of the passes, or every stage where a pass has one step.
/// Errors: a pass that the plan does not have, more than kMostAnimationFrames frames.
Result<std::vector<Playhead>> list_moments(const PlanIndex& plan, const AnimationOrder& order);
inline constexpr int64_t kMostAnimationFrames = 4096;

/// "4 steps one after the other, 64 frames, 7.2 s".
std::string describe(const PaintedAnimation& animation);

/// Paints the state at each of these moments, with the size, scale and fonts of a picture. The
/// state's playhead is what it was afterwards.
Result<PaintedAnimation> paint_animation(AppState& state,
                                         const std::function<Picture(const TextWidth&)>& compose,
                                         Size size, FontChoice fonts, float scale,
                                         const AnimationOrder& order);

}  // namespace cpscope::gui
