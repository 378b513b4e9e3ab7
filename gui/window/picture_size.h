#pragma once

#include "gui/draw/drawing.h"
#include "sim/base/result.h"

#include <optional>
#include <string>

namespace cpscope::gui {

/// Below this a picture has no room for its own words.
inline constexpr Size kLeastPicture{480, 360};

/// "1280x860" as logical pixels. Too small, and more than 64 Mi pixels at `scale`, are errors.
Result<Size> read_size(const std::string& text, double scale);
std::optional<Error> check_size(Size size, double scale);

/// Is the folder there that a picture is to be written to? `option` names who asks.
std::optional<Error> check_folder(const std::string& path, const std::string& option);

}  // namespace cpscope::gui
