#pragma once

#include <cstdint>

namespace cpscope::gui {

/// Lines of the caption in an animation: a step passes before more could be read.
inline constexpr int32_t kAnimatedCaption = 2;

/// Which moments an animation shows, and how fast.
struct AnimationOrder {
  bool has_forward = true, has_backward = false;  // the passes, one after the other
  int32_t frames_per_step = 16;  // the last of them is the end of the step, at rest
  double seconds_per_step = 1.2;
};

}  // namespace cpscope::gui
