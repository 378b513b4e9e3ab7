#include "gui/model/mask/mask_frame.h"

#include "gui/model/axis.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace cpscope::gui {
namespace {

constexpr float kLeastRuler = 42;  // width of the numbers left of the square
constexpr float kTopRuler = 20;    // height of the numbers above it
constexpr float kEdgeStrip = 15;   // owners along both edges
constexpr float kLeastSide = 190;  // minimum width of the text next to the square
constexpr float kBelow = 118;      // maximum height of the text below it
constexpr float kLeastBelow = 56;  // minimum: three lines

}  // namespace

MaskFrame place_mask_parts(const ViewInput& input) {
  const Size& size = input.size;
  const int64_t q_tokens = input.plan->tokens(Side::q), k_tokens = input.plan->tokens(Side::kv);
  const double q_per_k = static_cast<double>(q_tokens) / static_cast<double>(k_tokens);
  const float ruler =
      std::max({kLeastRuler, input.text_width(print_count(q_tokens), 11, Face::mono) + 8,
                input.text_width("queries", 11, Face::body) + 8,
                input.text_width("keys ->", 11, Face::body) + 8});
  MaskFrame frame;
  const float left = kViewPad / 2 + ruler + kEdgeStrip, top = kViewPad / 2 + kTopRuler + kEdgeStrip;
  const float beside = size.width - left - 2 * kViewPad - kLeastSide;
  // In a low panel the last lines of the text are left out before the square gets too small.
  const float text_height = std::clamp(0.28F * size.height, kLeastBelow, kBelow);
  const float below = size.height - top - kViewPad - text_height;
  const float height = size.height - top - kViewPad;
  frame.has_side = std::min(beside, height) >= std::min(size.width - left - kViewPad, below);
  const float room_x = frame.has_side ? beside : size.width - left - kViewPad;
  const float room_y = frame.has_side ? height : below;
  // A nearly square shape is made square; other shapes fill the available room.
  float width = room_x, tall = room_y;
  if (q_per_k > 0.7 && q_per_k < 1.4) width = tall = std::min(room_x, room_y);
  frame.square = {left, top, left + std::max(width, 0.0F), top + std::max(tall, 0.0F)};
  frame.left_strip = {left - kEdgeStrip, top, left - 2, frame.square.y1};
  frame.top_strip = {left, top - kEdgeStrip, frame.square.x1, top - 2};
  frame.left_ruler = {kViewPad / 2, top, left - kEdgeStrip, frame.square.y1};
  frame.top_ruler = {left, kViewPad / 2, frame.square.x1, top - kEdgeStrip};
  if (frame.has_side)
    frame.text = {frame.square.x1 + 2 * kViewPad, top - kEdgeStrip, size.width - kViewPad,
                  size.height - kViewPad};
  else
    frame.text = {kViewPad, frame.square.y1 + kViewPad, size.width - kViewPad,
                  size.height - kViewPad / 2};
  return frame;
}

StepWindow find_window(const PlanIndex& index, Direction direction, Moment moment) {
  StepWindow window;
  window.num_steps = std::max(1, index.pass(direction).num_steps);
  for (size_t s = 0; s < index.stages().size(); ++s) {
    const StageRef& stage = index.stages()[s];
    if (stage.kind != StageKind::compute || stage.direction != direction) continue;
    const When when = PlanIndex::when(static_cast<int32_t>(s), moment);
    if (when == When::done) window.now_begin = stage.step + 1;
    if (when != When::later) window.now_end = stage.step + 1;
  }
  window.now_end = std::max(window.now_end, window.now_begin);
  return window;
}

Direction direction_at(const PlanIndex& index, Moment moment) {
  if (index.stages().empty()) return Direction::forward;
  const auto last = static_cast<int32_t>(index.stages().size()) - 1;
  return index.stages()[std::clamp(moment.first_stage, 0, last)].direction;
}

LegendEntry mask_sample(std::string text, const MaskPaint& paint, CellLook look, PaintWhen when,
                        const Theme& theme) {
  LegendEntry entry;
  entry.text = std::move(text);
  entry.has_sample = true;
  entry.color = paint.of(look, when);
  if (look == CellLook::partial || look == CellLook::hidden) entry.hatch = Hatch::diagonal;
  if (look == CellLook::padding) entry.hatch = Hatch::dots;
  entry.hatch_color = paint.hatch_of(look, when);
  if (look == CellLook::empty) entry.outline = theme.of(Role::border);
  return entry;
}

LegendEntry mask_text(std::string text, bool starts_line, bool is_strong) {
  LegendEntry entry;
  entry.text = std::move(text);
  entry.starts_line = starts_line;
  entry.is_strong = is_strong;
  return entry;
}

LegendEntry faint_mask_text(std::string text, bool starts_line) {
  LegendEntry entry = mask_text(std::move(text), starts_line, false);
  entry.is_faint = true;
  return entry;
}

void add_time_samples(const ViewInput& input, const MaskPaint& paint,
                      std::vector<LegendEntry>& entries) {
  const Theme& theme = *input.theme;
  entries.push_back(mask_sample("later", paint, CellLook::full, PaintWhen::later, theme));
  entries.back().starts_line = true;
  entries.push_back(mask_sample("done", paint, CellLook::full, PaintWhen::done, theme));
  entries.push_back(mask_sample("computed now", paint, CellLook::full, PaintWhen::now, theme));
  if (input.mask_colors == MaskColors::classes) return;
  entries.push_back(faint_mask_text(input.mask_colors == MaskColors::owners
                                        ? "coloured by the rank that owns the query"
                                        : "coloured by step, the first one darkest",
                                    true));
}

void add_mask_axis_names(Drawing& drawing, const ViewInput& input, const MaskFrame& frame) {
  const Color ink = input.theme->of(Role::faint_text);
  drawing.add(Label{{frame.left_strip.x0 - 3, frame.top_ruler.center().y - 3},
                    Anchor::right_middle,
                    input.theme->of(Role::key),
                    11,
                    Face::body,
                    "keys ->"});
  drawing.add(Label{{frame.left_strip.x0 - 3, frame.top_strip.center().y},
                    Anchor::right_middle,
                    input.theme->of(Role::query),
                    11,
                    Face::body,
                    "queries"});
  drawing.add(Line{{frame.left_strip.center().x, frame.top_strip.y0 + 2},
                   {frame.left_strip.center().x, frame.top_strip.y1},
                   ink,
                   1,
                   false,
                   true});
}

}  // namespace cpscope::gui
