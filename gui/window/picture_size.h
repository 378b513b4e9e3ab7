#pragma once

#include "gui/draw/drawing.h"
#include "sim/base/result.h"

#include <optional>
#include <string>

namespace cpscope::gui {

/// Below this size a picture has no room for its text.
inline constexpr Size kLeastPicture{320, 240};

/// Parses "1280x860" as logical pixels. Errors: too small, or more than 64 Mi pixels at `scale`.
Result<Size> read_size(const std::string& text, double scale);
std::optional<Error> check_size(Size size, double scale);

/// Checks that the folder of a picture exists. `option` is the command-line option in the error.
std::optional<Error> check_folder(const std::string& path, const std::string& option);

}  // namespace cpscope::gui
