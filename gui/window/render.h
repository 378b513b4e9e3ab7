#pragma once

#include "sim/findings/picture_request.h"

namespace cpscope::gui {

/// The command `render`: writes one picture and needs no display. Returns the exit code.
int render(const RenderRequest& request, Toolbox& toolbox);

/// True if this build can write PNG pictures. SVG is always available.
bool can_write_png();

}  // namespace cpscope::gui
