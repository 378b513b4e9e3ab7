#pragma once

#include "gui/model/view.h"

namespace cpscope::gui {

View make_view(ViewKind kind, const ViewInput& input);

}  // namespace cpscope::gui
