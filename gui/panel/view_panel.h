#pragma once

#include "gui/app/background.h"
#include "gui/app/projection_memo.h"
#include "gui/model/view.h"
#include "gui/panel/ui.h"

#include <array>
#include <optional>

namespace cpscope::gui {

/// What makes a view what it is: while it stays the same, the last view is shown again.
struct ViewKey {
  SharedPlan plan;
  Moment moment;
  Camera camera;
  Size size;
  float scale = 1;  // letters are not equally wide at every scale
  ThemeName theme = ThemeName::dark;
  Target selection;
  SharedProjection selected, hovered;
  int32_t focus_rank = 0, tensor = 0;
  bool is_cumulative = false, shows_time = false, is_by_step = false;
  SharedRun run_a, run_b;
  double progress = 1.0;

  friend bool operator==(const ViewKey&, const ViewKey&) = default;
};

/// What selection and hover touch in the plan of a view.
struct LitTargets {
  SharedProjection selected, hovered;
};

/// One view and how the mouse moves it.
class ViewPanel {
 public:
  /// `is_pinned`: of the pinned plan instead of the document's.
  explicit ViewPanel(ViewKind kind, bool is_pinned = false) : kind_(kind), is_pinned_(is_pinned) {}

  /// The whole panel: heading, picture, what the mouse does.
  void build(Ui& ui, const LitTargets& lit, const Box& box);
  /// Is a part of the picture still being made elsewhere?
  bool is_waiting() const { return memo_.is_waiting(); }
  /// The last view that was made.
  const View& view() const { return view_; }

 private:
  const SharedPlan& plan(const AppState& state) const;
  ViewInput input(const AppState& state) const;
  void refresh(Ui& ui, const LitTargets& lit, Size size);
  void show_first(Ui& ui, Size size);
  void show_picture(Ui& ui, const LitTargets& lit, const Box& box, const std::string& name);
  void answer_mouse(Ui& ui, Point origin, Size size);
  void zoom_at(Ui& ui, Point at, Size size, float wheel);
  void drag(Ui& ui, Size size);

  ViewKind kind_;
  bool is_pinned_;
  std::optional<ViewKey> key_;
  std::shared_ptr<const Layout> first_;  // whose layout is shown before there is a plan
  View view_;
  ViewMemo memo_;
  Worker worker_;
  Point pressed_;   // where the button went down, relative to the picture
  Camera grabbed_;  // the camera at that time
  bool is_held_ = false, is_dragged_ = false;
};

/// A button that opens the list of clusters and chooses one of them; its items' names begin with
/// `name`.
void cluster_button(Ui& ui, const std::string& name, const std::string& label);

/// What a place of a view's picture means; nothing for empty canvas.
Target target_at(const View& view, ViewKind kind, const ViewInput& input, Point at);
/// Its tip, "" for none.
std::string tip_at(const View& view, Point at);

}  // namespace cpscope::gui
