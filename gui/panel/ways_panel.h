#pragma once

#include "gui/app/app_state.h"
#include "gui/model/ways/comparison_chart.h"
#include "gui/panel/ui.h"

namespace cpscope::gui {

/// The page of ways: the recommendation, and all candidates as points and as a list. A hovered
/// candidate is highlighted in both and described in the inspector; a click takes it.
class WaysPanel {
 public:
  void build(Ui& ui, const Box& box);

 private:
  /// The inputs of both pictures; while they do not change, the pictures are shown again.
  struct Key {
    SharedCandidates candidates;
    int64_t lit = -1;
    ThemeName theme = ThemeName::dark;
    float scale = 1;
    Size chart;
    float list = 0;  // width of the list

    friend bool operator==(const Key&, const Key&) = default;
  };
  void refresh(const Ui& ui, const Key& key);
  void build_heading(Ui& ui);
  void build_pictures(Ui& ui, const SharedCandidates& candidates);
  void show(Ui& ui, const CandidateView& view, const char* id, Size size);

  Key key_;
  CandidateView chart_, list_;
  Drawing header_;
  int64_t hovered_ = -1;  // candidate under the mouse in this frame
};

}  // namespace cpscope::gui
