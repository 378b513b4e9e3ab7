#pragma once

#include "sim/app/cli/picture_request.h"
#include "sim/app/cli/program.h"

namespace cpscope::gui {

/// The command `render`: writes one picture and needs no display. Returns the exit code.
int render(const RenderRequest& request, Toolbox& toolbox);

/// True if this build can write PNG pictures. SVG is always available.
bool can_write_png();

}  // namespace cpscope::gui
