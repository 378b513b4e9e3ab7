#pragma once

#include "sim/findings/picture_request.h"

namespace cpscope::gui {

/// The command `gui`: shows the window until it is closed, or writes a picture of it. Returns the
/// exit code.
int open_window(const WindowRequest& request, Toolbox& toolbox);

}  // namespace cpscope::gui
