#pragma once

#include "sim/app/figure.h"

#include <string>
#include <vector>

namespace cpscope::gui {

/// The pictures of a report: the mask with the first wrong tile hatched, a close-up where that is
/// small, the layout with the wrong token, the errors by token and head, and what travels and
/// happens in that step. Of a case that passes, mask and layout alone. What is hatched carries a
/// title that begins with "first wrong".
std::vector<Figure> draw_report_figures(const FigureRequest& request, std::string& left_out);

}  // namespace cpscope::gui
