#pragma once

#include "gui/panel/textures.h"

namespace cpscope::gui {

/// Textures of the current OpenGL context, cells with sharp edges.
TextureDevice make_gl_device();

}  // namespace cpscope::gui
