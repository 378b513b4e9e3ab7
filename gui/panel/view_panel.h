#pragma once

#include "gui/app/document/background.h"
#include "gui/app/projection_memo.h"
#include "gui/model/view.h"
#include "gui/panel/ui.h"

#include <array>
#include <optional>

namespace cpscope::gui {

/// Everything that a view depends on: while it does not change, the last view is shown again.
struct ViewKey {
  SharedPlan plan;
  Moment moment;
  Camera camera;
  Size size;
  float scale = 1;  // text widths depend on the scale
  ThemeName theme = ThemeName::dark;
  Target selection;
  SharedProjection selected, hovered;
  int32_t focus_rank = 0, tensor = 0;
  bool is_cumulative = false, shows_time = false, is_by_step = false, is_by_rank = false;
  MaskColors mask_colors = MaskColors::classes;
  double stretch = 1;
  SharedRun run_a, run_b;
  double progress = 1.0;

  friend bool operator==(const ViewKey&, const ViewKey&) = default;
};

/// The projections of selection and hover in the plan of a view.
struct LitTargets {
  SharedProjection selected, hovered;
};

/// One view and its mouse interaction.
class ViewPanel {
 public:
  /// `pinned`: shows this pinned plan instead of the document's.
  explicit ViewPanel(ViewKind kind, std::optional<size_t> pinned = std::nullopt)
      : kind_(kind), pinned_(pinned) {}

  /// Builds the whole panel: heading, picture, mouse interaction.
  void build(Ui& ui, const LitTargets& lit, const Box& box);
  /// True if a part of the picture is still being made in the background.
  bool is_waiting() const { return memo_.is_waiting(); }
  /// The last view that was made.
  const View& view() const { return view_; }

 private:
  const SharedPlan& plan(const AppState& state) const;
  ViewInput input(const AppState& state) const;
  void refresh(Ui& ui, const LitTargets& lit, Size size);
  /// True if the picture is of an earlier plan, because the scenario has none.
  bool is_stale(const AppState& state) const;
  void show_first(Ui& ui, Size size);
  void show_picture(Ui& ui, const LitTargets& lit, const Box& box, const std::string& name);
  void answer_mouse(Ui& ui, Point origin, Size size);
  /// After a double click: goes to the step of the mask's tile under the mouse. Returns false if
  /// there is none.
  bool seek_tile(Ui& ui, const ViewInput& input) const;
  void zoom_at(Ui& ui, Point at, Size size, float wheel);
  void drag(Ui& ui, Size size);
  /// Of a chunk of the layout that was picked up: the rank whose lane is at a point, if it would
  /// get the chunk.
  std::optional<int32_t> new_owner_at(const PlanIndex& plan, Point at) const;
  void carry_chunk(Ui& ui, Point at);

  ViewKind kind_;
  std::optional<size_t> pinned_;
  std::optional<ViewKey> key_;
  std::shared_ptr<const Layout> first_;  // the layout that is shown before there is a plan
  View view_;
  ViewMemo memo_;
  Worker worker_;
  Point pressed_;   // position of the button press, relative to the picture
  Camera grabbed_;  // the camera at the time of the press
  bool is_held_ = false, is_dragged_ = false;
  std::optional<TokenRange> chunk_;  // of the layout, under the button press
  bool is_carried_ = false;          // it left its row: it is moved, not the picture
};

/// The target at a position in a view's picture; nothing for empty canvas.
Target target_at(const View& view, ViewKind kind, const ViewInput& input, Point at);
/// The tooltip at a position, "" for none.
std::string tip_at(const View& view, Point at);

}  // namespace cpscope::gui
