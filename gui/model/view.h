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
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cpscope::gui {

enum class ViewKind : uint8_t { layout, mask, traffic, timeline, numbers, balance };
inline constexpr std::array kViewKinds = {ViewKind::layout,   ViewKind::mask,    ViewKind::traffic,
                                          ViewKind::timeline, ViewKind::numbers, ViewKind::balance};

/// Part of an axis, as a share of the whole: [0, 1] shows all of it.
struct AxisSpan {
  double lo = 0.0, hi = 1.0;

  friend bool operator==(const AxisSpan&, const AxisSpan&) = default;
};

/// Which part of a view's square is shown. x: tokens (layout), keys (mask), time (timeline), heads
/// (numbers); y: ranks (layout, timeline), queries (mask), tokens (numbers). Traffic: x receivers,
/// y senders. Balance: x ranks.
struct Camera {
  AxisSpan x, y;

  friend bool operator==(const Camera&, const Camera&) = default;
};

/// How strongly something is lit; the strongest wins.
enum class Light : uint8_t { none, related, selected, hovered };

/// What one target touches, so that all views light the same things (gui/model/project.h).
struct Projection {
  std::vector<TokenRange> q, kv;                   // ascending, disjoint
  std::vector<int32_t> ranks;                      // ascending
  std::vector<std::pair<int32_t, int32_t>> links;  // (src, dst), ascending
  std::vector<int32_t> steps;                      // of PlanIndex::steps, ascending
  std::vector<ItemTarget> items;                   // at most kMostItems, by stage
  bool has_more_items = false;

  static constexpr size_t kMostItems = 4096;
  bool is_empty() const { return q.empty() && kv.empty() && ranks.empty() && steps.empty(); }
};

/// A place that answers to the mouse. Later regions lie above earlier ones.
struct HitRegion {
  Box box;
  Target target;
  std::string name;     // "rank/3", unique in its view; hands find it by this
  std::string tooltip;  // what it is, in figures
};

/// An area of a linear scale in both directions: a point in it is found by arithmetic.
struct HitGrid {
  Box box;
  double x0 = 0, x1 = 0, y0 = 0, y1 = 0;  // domain at the box's edges; [x0, x1) keys, receivers ...
};

/// One view at one moment: what to paint and what answers to the mouse. No state of its own.
struct View {
  Drawing drawing;
  std::vector<HitRegion> hits;
  std::vector<HitGrid> grids;  // the views with grids say in their header what x and y are
  std::string title;           // "Mask: which pairs are computed, and where"
  std::string scale;           // "1 px = 552 tokens"
};

/// How wide a text is on the canvas, in logical pixels.
using TextWidth = std::function<float(const std::string& text, float size, Face face)>;

}  // namespace cpscope::gui

namespace cpscope {
struct RunRecord;
}  // namespace cpscope

namespace cpscope::gui {

/// A run that can be shown: what it did beside the oracle, and when (numbers, timeline).
struct RunView {
  std::string name;  // "A: cpu (fp32)"
  std::vector<ErrorField> errors;
  std::vector<ItemEvent> events;  // by start; empty without a clock
  bool is_simulated = false;
  std::string against;           // what it is compared with: "the oracle", "B: cuda"
  std::string verdict;           // one sentence; empty when nobody judged
  std::string first_divergence;  // sentence; empty when there is none or nothing to compare with
  std::shared_ptr<const RunRecord> record;  // what another run is compared with; may be null
  std::shared_ptr<const StepErrors>
      steps;                  // what each step wrote beside what it should; may be null
  std::string without_steps;  // then why, and what to do
};

/// Everything that a view may depend on.
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
  int32_t focus_rank = 0;      // whose local order, whose items
  bool is_cumulative = false;  // traffic: since the beginning instead of now
  bool shows_time = false;     // timeline: nanoseconds of the run instead of steps
  int32_t tensor = 0;          // numbers: which of kErrorTensors
  bool is_by_step = false;     // numbers: what the step of now wrote instead of the answer
  const RunView* run_a = nullptr;
  const RunView* run_b = nullptr;
  double progress = 1.0;     // animation inside a reorder stage, 0 before, 1 after
  ViewMemo* memo = nullptr;  // may be null: then everything is made anew
};

/// Between a view's edges and its parts, and between those, in logical pixels.
inline constexpr float kViewPad = 8;
/// Size of figures and notes in a view, in logical pixels.
inline constexpr float kSmallText = 11;

std::string_view to_name(ViewKind kind);

/// Most marks that a view may make, whatever the camera shows.
inline constexpr size_t kMostMarks = 20'000;

}  // namespace cpscope::gui
