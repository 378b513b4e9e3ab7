#pragma once

#include "sim/run/toolbox.h"

namespace cpscope::gui {

/// Opens the window as a web page and hands the thread over to the browser. The toolbox must live
/// as long as the page. Returns 1 when there is no WebGL 2.
int open_page(Toolbox& toolbox);

}  // namespace cpscope::gui
