#pragma once

#include "gui/app/app_state.h"
#include "gui/window/picture.h"
#include "sim/base/result.h"

#include <cstdint>
#include <optional>
#include <string>

namespace cpscope::gui {

/// A lesson on one page of paper.
struct HandoutOrder {
  int32_t lesson = 0;        // from 0
  bool has_answers = false;  // otherwise hints, and a line to write on
  std::string imprint;       // small text at the foot
};

/// The shape of A4, in logical pixels.
inline constexpr Size kHandoutSize{1240, 1754};

/// Why a lesson cannot be printed; nothing when it can. Opens its pages one after the other.
std::optional<Error> refuse_handout(AppState& state, const HandoutOrder& order);

/// For each page of the lesson its picture and its text; for a question its hint, or the answer
/// with the reason. Opens the pages one after the other and does what they ask for, so that a later
/// page shows the result. The order must not be one that refuse_handout refuses.
Picture draw_handout(AppState& state, const HandoutOrder& order, const TextWidth& text_width);

}  // namespace cpscope::gui
