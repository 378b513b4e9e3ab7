#pragma once

#include "gui/draw/drawing.h"
#include "gui/draw/theme.h"
#include "gui/model/error_field.h"
#include "gui/model/plan_index.h"
#include "gui/model/step_errors.h"
#include "gui/model/target.h"
#include "gui/model/view_memo.h"

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cpscope::gui {

enum class ViewKind : uint8_t { layout, mask, traffic, timeline, numbers, balance };
inline constexpr std::array kViewKinds = {ViewKind::layout,   ViewKind::mask,    ViewKind::traffic,
                                          ViewKind::timeline, ViewKind::numbers, ViewKind::balance};

/// A part of an axis, as shares of the whole: [0, 1] shows all of it.
struct AxisSpan {
  double lo = 0.0, hi = 1.0;

  friend bool operator==(const AxisSpan&, const AxisSpan&) = default;
};

/// The shown part of a view's square. x: tokens (layout), keys (mask), time (timeline), heads
/// (numbers); y: ranks (layout, timeline), queries (mask), tokens (numbers). Traffic: x receivers,
/// y senders. Balance: x ranks.
struct Camera {
  AxisSpan x, y;

  friend bool operator==(const Camera&, const Camera&) = default;
};

/// How strongly an object is lit; the strongest wins.
enum class Light : uint8_t { none, related, selected, hovered };

/// The objects that one target touches, so that all views light the same ones
/// (gui/model/project.h).
struct Projection {
  std::vector<TokenRange> q, kv;                   // ascending, disjoint
  std::vector<int32_t> ranks;                      // ascending
  std::vector<std::pair<int32_t, int32_t>> links;  // (src, dst), ascending
  std::vector<int32_t> steps;                      // indices in PlanIndex::steps, ascending
  std::vector<ItemId> items;                       // at most kMostItems, by stage
  bool has_more_items = false;

  static constexpr size_t kMostItems = 4096;
  bool is_empty() const { return q.empty() && kv.empty() && ranks.empty() && steps.empty(); }
  const std::vector<TokenRange>& tokens(Side side) const { return side == Side::q ? q : kv; }
};

/// A region that reacts to the mouse. Later regions are above earlier ones.
struct HitRegion {
  Box box;
  Target target;
  std::string name;     // "rank/3", unique in its view; tests find it by this name
  std::string tooltip;  // description with figures
};

/// An area with a linear scale in both directions: its target is computed from the position.
struct HitGrid {
  Box box;
  double x0 = 0, x1 = 0, y0 = 0, y1 = 0;  // domain at the box's edges; [x0, x1) keys, receivers ...
};

/// One view at one moment: its marks and its mouse regions. Has no state of its own.
struct View {
  Drawing drawing;
  std::vector<HitRegion> hits;
  std::vector<HitGrid> grids;  // the header of each view with grids says what x and y are
  std::vector<Box> scaled;     // the areas that the camera scales, of a view without grids; of two
                               // layouts the queries' first
  std::string title;           // "Mask: which (query, key) pairs are computed, and by which rank"
  std::string scale;           // "1 px = 552 tokens"
};

/// The width of a text on the canvas, in logical pixels.
using TextWidth = std::function<float(const std::string& text, float size, Face face)>;

}  // namespace cpscope::gui

namespace cpscope {
struct RunRecord;
}  // namespace cpscope

namespace cpscope::gui {

/// A run that can be shown: its errors against the oracle, and its times (numbers, timeline).
struct RunView {
  std::string name;  // "A: cpu (fp32)"
  std::vector<ErrorField> errors;
  std::vector<ItemEvent> events;  // by start; empty without a clock
  bool is_simulated = false;
  int64_t total_ns = 0;          // predicted: both passes, with what follows their last items
  std::string against;           // its reference: "the oracle", "B: cuda"
  std::string verdict;           // one sentence; empty when the run was not judged
  std::optional<bool> passed;    // its verdict, where there is one
  std::string first_divergence;  // sentence; empty when there is none or nothing to compare with
  std::shared_ptr<const RunRecord> record;  // for comparison with another run; may be null
  std::shared_ptr<const StepErrors> steps;  // each step against its exact result; may be null
  std::string without_steps;                // then the reason, and what to do
};

/// What the colours of the mask tell besides later, done and now.
enum class MaskColors : uint8_t { classes, owners, steps };
inline constexpr std::array kMaskColors = {MaskColors::classes, MaskColors::owners,
                                           MaskColors::steps};
std::string_view to_name(MaskColors colors);

/// All inputs of a view.
struct ViewInput {
  const PlanIndex* plan = nullptr;
  Moment moment;
  Camera camera;
  Size size;
  const Theme* theme = nullptr;
  TextWidth text_width;                  // never empty
  const Projection* selected = nullptr;  // never null
  const Projection* hovered = nullptr;   // never null
  Target selection;
  int32_t focus_rank = 0;      // the rank whose local order and items are shown
  bool is_cumulative = false;  // traffic: since the beginning instead of the moment
  bool shows_time = false;     // timeline: nanoseconds of the run instead of steps
  int32_t tensor = 0;          // numbers: index in kErrorTensors
  bool is_by_step = false;     // numbers: what the current step wrote instead of the answer
  bool is_by_rank = false;     // mask: tokens in the order of ranks instead of the sequence
  MaskColors mask_colors = MaskColors::classes;
  double stretch = 1;  // timeline: the axis is this many times as long as the plan
  const RunView* run_a = nullptr;
  const RunView* run_b = nullptr;
  double progress = 1.0;     // inside the moment, 0 before, 1 after; layout: of its reorders
  ViewMemo* memo = nullptr;  // may be null: then everything is computed again
};

/// Distance between a view's edges and its parts, and between parts, in logical pixels.
inline constexpr float kViewPad = 8;
/// Size of figures and notes in a view, in logical pixels.
inline constexpr float kSmallText = 11;

std::string_view to_name(ViewKind kind);

/// Limit of the marks of a view, for any camera.
inline constexpr size_t kMostMarks = 20'000;

}  // namespace cpscope::gui
