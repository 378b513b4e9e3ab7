#pragma once

#include "gui/draw/drawing.h"
#include "gui/model/view.h"
#include "sim/clock/candidates.h"

#include <cstdint>
#include <string>
#include <vector>

namespace cpscope::gui {

/// What a chart of candidates is made from.
struct ComparisonChart {
  const Candidates* comparison = nullptr;  // never null
  std::string title;                       // of the scenario; may be empty
  Size size;
  const Theme* theme = nullptr;
  TextWidth text_width;  // never empty
  int64_t lit = -1;      // the candidate that is pointed at; -1: none
  bool is_bare = false;  // without title and recommendation: the window says them beside it
};

/// A view of candidates, and which one each of its hits is.
struct CandidateView {
  View view;
  std::vector<int64_t> candidates;  // [hit] number in Candidates::candidates
};
/// The one whose hit is there, the nearest middle of several; -1: none.
int64_t candidate_at(const CandidateView& view, Point at);

/// All candidates of a batch as points: bytes that the busiest rank sends against the time of both
/// passes, both on scales of equal ratios. The shape says how keys and values move; full colour is
/// the Pareto front of time, bytes and memory; crossed out is what does not fit or pads too much.
/// The best and the scenario's own are named, and below stands the sentence that recommends.
CandidateView view_comparison(const ComparisonChart& chart);
Drawing draw_comparison(const ComparisonChart& chart);

/// The sign of a candidate wherever it is shown: shape, fullness of colour, cross.
void add_candidate_sign(Drawing& drawing, const Theme& theme, Color background,
                        const Candidate& candidate, Point at);

/// One line about a candidate: "a2a, contiguous: 1.00 ms, 12 % longer than the best".
std::string describe_candidate(const Candidates& comparison, int64_t index);

}  // namespace cpscope::gui
