#pragma once

#include "gui/app/app_state.h"
#include "gui/model/ways/comparison_chart.h"
#include "gui/panel/ui.h"

namespace cpscope::gui {

/// The page of ways: what is recommended, all candidates as points and as a list. A candidate that
/// is pointed at is lit in both and told by the inspector; a click takes it.
class WaysPanel {
 public:
  void build(Ui& ui, const Box& box);

 private:
  /// What both pictures are made from; while it stays the same, they are shown again.
  struct Key {
    SharedCandidates candidates;
    int64_t lit = -1;
    ThemeName theme = ThemeName::dark;
    float scale = 1;
    Size chart;
    float list = 0;  // width

    friend bool operator==(const Key&, const Key&) = default;
  };
  void refresh(const Ui& ui, const Key& key);
  void build_heading(Ui& ui);
  void build_pictures(Ui& ui, const SharedCandidates& candidates);
  void show(Ui& ui, const CandidateView& view, const char* id, Size size);

  Key key_;
  CandidateView chart_, list_;
  Drawing header_;
  int64_t hovered_ = -1;  // of this frame
};

}  // namespace cpscope::gui
