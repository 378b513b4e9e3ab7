#pragma once

#include "sim/app/picture_request.h"
#include "sim/app/program.h"

namespace cpscope::gui {

/// The command `render`: writes one picture and needs no display. Returns the exit code.
int render(const RenderRequest& request, Toolbox& toolbox);

}  // namespace cpscope::gui
