#pragma once

#include "gui/panel/textures.h"

namespace cpscope::gui {

/// Textures of the current OpenGL context; cells have sharp edges.
TextureDevice make_gl_device();

}  // namespace cpscope::gui
