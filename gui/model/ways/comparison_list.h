#pragma once

#include "gui/draw/drawing.h"
#include "gui/model/view.h"
#include "gui/model/ways/comparison_chart.h"
#include "sim/clock/candidates.h"

#include <cstdint>

namespace cpscope::gui {

/// The input of a list of candidates.
struct ComparisonList {
  const Candidates* comparison = nullptr;  // never null
  float width = 0;
  const Theme* theme = nullptr;
  TextWidth text_width;  // never empty
  int64_t lit = -1;      // the hovered candidate; -1: none
};

/// The legend of the bars' parts, and the column names: drawn over the list, kListHeader high.
Drawing draw_list_header(const ComparisonList& list);

/// One row per candidate, in order: symbol and name, time by part (mean over the ranks, both
/// passes, all bars on one scale, longer ones broken), total, exposed, sent, memory, padding. Then
/// the rejected ones with their reasons. Columns that have no room are left out.
CandidateView view_list(const ComparisonList& list);
float list_height(const Candidates& comparison);

inline constexpr float kListHeader = 40, kListRow = 20;

}  // namespace cpscope::gui
