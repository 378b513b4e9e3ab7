#pragma once

#include "sim/run/toolbox.h"

#include <string>

namespace cpscope::gui {

/// Carries out a run, or judges the record `given`, for a page: in a worker of the browser, which
/// has a program and files of its own. Reads the plan and writes the result where the page put and
/// looks for them. An empty name means that a record is judged.
void work_for_page(Toolbox& toolbox, const std::string& executor, const std::string& given);

/// Opens the window as a web page and hands the thread over to the browser. The toolbox must live
/// as long as the page. Returns 1 when there is no WebGL 2.
int open_page(Toolbox& toolbox);

}  // namespace cpscope::gui
