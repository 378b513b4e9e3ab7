#pragma once

#include "sim/findings/figure.h"

#include <string>
#include <vector>

namespace cpscope::gui {

/// The pictures of a report: the mask with the first wrong tile hatched, a close-up if that tile is
/// small, the layout with the wrong token, the errors by token and head, and the traffic and
/// timeline of that step. For a case that passes, only mask and layout. The title of every hatched
/// area begins with "first wrong".
std::vector<Figure> draw_report_figures(const FigureRequest& request, std::string& left_out);

}  // namespace cpscope::gui
