#pragma once

#include "sim/app/picture_request.h"
#include "sim/app/program.h"

namespace cpscope::gui {

/// The command `render`: writes one picture and needs no display. Returns the exit code.
int render(const RenderRequest& request, Toolbox& toolbox);

/// Was this build made with what PNG pictures need? SVG needs nothing.
bool can_write_png();

}  // namespace cpscope::gui
