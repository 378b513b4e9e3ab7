#pragma once

#include "gui/draw/drawing.h"
#include "gui/model/view.h"
#include "sim/clock/candidates.h"

#include <cstdint>
#include <string>
#include <vector>

namespace cpscope::gui {

/// The input of a chart of candidates.
struct ComparisonChart {
  const Candidates* comparison = nullptr;  // never null
  std::string title;                       // title of the scenario; may be empty
  Size size;
  const Theme* theme = nullptr;
  TextWidth text_width;  // never empty
  int64_t lit = -1;      // the hovered candidate; -1: none
  bool is_bare = false;  // without title and recommendation: the window shows them next to it
};

/// A view of candidates, and the candidate of each of its hits.
struct CandidateView {
  View view;
  std::vector<int64_t> candidates;  // [hit] index in Candidates::candidates
};
/// The candidate whose hit is at the position, the one with the nearest middle of several; -1:
/// none.
int64_t candidate_at(const CandidateView& view, Point at);

/// All candidates of a batch as points: bytes that the busiest rank sends against the time of both
/// passes, both on logarithmic scales. The shape shows the communication type; full colour marks
/// the Pareto front of time, bytes and memory; a cross marks candidates that do not fit or pad too
/// much. The best and the scenario's own are named, and the sentence below recommends one.
CandidateView view_comparison(const ComparisonChart& chart);
Drawing draw_comparison(const ComparisonChart& chart);

/// Adds the symbol of a candidate wherever it is shown: shape, strength of colour, cross.
void add_candidate_sign(Drawing& drawing, const Theme& theme, Color background,
                        const Candidate& candidate, Point at);

/// One line about a candidate: "a2a, contiguous: 1.00 ms, 12 % longer than the best".
std::string describe_candidate(const Candidates& comparison, int64_t index);

}  // namespace cpscope::gui
