#pragma once

#include "gui/draw/drawing.h"
#include "gui/model/view.h"
#include "gui/model/ways/comparison_chart.h"
#include "sim/clock/candidates.h"

#include <cstdint>

namespace cpscope::gui {

/// What a list of candidates is made from.
struct ComparisonList {
  const Candidates* comparison = nullptr;  // never null
  float width = 0;
  const Theme* theme = nullptr;
  TextWidth text_width;  // never empty
  int64_t lit = -1;      // the candidate that is pointed at; -1: none
};

/// What the parts of the bars are, and the names of the columns: over the list, kListHeader high.
Drawing draw_list_header(const ComparisonList& list);

/// A row a candidate in their order: sign and name, where the time goes (mean over the ranks, both
/// passes, all bars on one scale, those that leave it broken), total, exposed, sent, memory,
/// padding. Then the refused ones with their reasons. Columns that have no room are left out.
CandidateView view_list(const ComparisonList& list);
float list_height(const Candidates& comparison);

inline constexpr float kListHeader = 40, kListRow = 20;

}  // namespace cpscope::gui
