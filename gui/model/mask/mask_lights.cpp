#include "gui/model/legend.h"
#include "gui/model/mask/mask_marks.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

constexpr size_t kMostFocusBands = 400;
constexpr size_t kMostLitBands = 120;
constexpr size_t kMostLitItems = 8;
constexpr size_t kMostLitRanges = 200;
constexpr size_t kMostOutlinedRanges = 6;
constexpr float kLeastRangeRoom = 40;  // pixels of the square needed for every outlined range
constexpr int64_t kManyBands = 60;     // more bands than this are outlined with thin lines
constexpr float kLeastShape = 6;       // minimum pixels of a band that is drawn as a parallelogram
constexpr float kOwnerText = 10;

struct Place {
  double x, y;
};

/// Cuts off the part of the shape outside a * x + b * y <= c.
std::vector<Place> cut_off(const std::vector<Place>& shape, double a, double b, double c) {
  std::vector<Place> kept;
  for (size_t i = 0; i < shape.size(); ++i) {
    const Place p = shape[i], n = shape[(i + 1) % shape.size()];
    const double at_p = a * p.x + b * p.y - c, at_n = a * n.x + b * n.y - c;
    if (at_p <= 0) kept.push_back(p);
    if ((at_p < 0 && at_n > 0) || (at_p > 0 && at_n < 0)) {
      const double share = at_p / (at_p - at_n);
      kept.push_back({p.x + (n.x - p.x) * share, p.y + (n.y - p.y) * share});
    }
  }
  return kept;
}

/// The convex hull of the cells of a band: its rectangle between the two diagonals, in places of
/// its runs.
std::vector<Place> hull_of(const WorkBand& band) {
  const auto rows = static_cast<double>(band.q.count());
  const auto columns = static_cast<double>(band.k.count());
  std::vector<Place> shape{{0, 0}, {columns, 0}, {columns, rows}, {0, rows}};
  shape = cut_off(shape, 1, -1, static_cast<double>(band.hi) + 1);
  return cut_off(shape, -1, 1, 1 - static_cast<double>(band.lo));
}

PairRange shown_pairs(const MaskScene& scene) {
  const auto end_of = [](const Axis& axis) { return static_cast<int64_t>(axis.hi()) + 1; };
  return {static_cast<int64_t>(std::max(0.0, scene.q.lo())), end_of(scene.q),
          static_cast<int64_t>(std::max(0.0, scene.k.lo())), end_of(scene.k)};
}

/// Adds a line; a thick one gets a border, so that it is visible on any colour.
void add_edge(Drawing& drawing, const MaskScene& scene, Point from, Point to, Color color,
              float width, bool is_dashed) {
  if (width > 1) drawing.add(Line{from, to, scene.input.theme->of(Role::background), width + 3});
  drawing.add(Line{from, to, color, width, is_dashed});
}

void add_shape(Drawing& drawing, const MaskScene& scene, const WorkBand& band, Color color,
               float width) {
  const auto x_of = [&](double x) {
    return scene.k.pixel_of(static_cast<double>(band.k.begin) +
                            x * static_cast<double>(band.k.stride));
  };
  const auto y_of = [&](double y) {
    return scene.q.pixel_of(static_cast<double>(band.q.begin) +
                            y * static_cast<double>(band.q.stride));
  };
  const Box box{x_of(0), y_of(0), x_of(static_cast<double>(band.k.count())),
                y_of(static_cast<double>(band.q.count()))};
  const bool is_strided = band.q.stride > 1 || band.k.stride > 1;
  if (std::min(box.width(), box.height()) < kLeastShape) {
    const Point c = box.center();
    const float half_x = std::max(1.5F, box.width() / 2), half_y = std::max(1.5F, box.height() / 2);
    drawing.add(
        OutlinedBox{{c.x - half_x, c.y - half_y, c.x + half_x, c.y + half_y}, color, width});
    return;
  }
  const std::vector<Place> shape = hull_of(band);
  for (size_t i = 0; i < shape.size(); ++i) {
    const Place a = shape[i], b = shape[(i + 1) % shape.size()];
    add_edge(drawing, scene, {x_of(a.x), y_of(a.y)}, {x_of(b.x), y_of(b.y)}, color, width,
             is_strided);
  }
}

// Outlines the bands of an item and returns their number; clears is_complete if some were left out.
int64_t add_item(Drawing& drawing, const MaskScene& scene, const ComputeItem& item, size_t most,
                 Color color, float width, bool* is_complete = nullptr) {
  std::vector<WorkBand> bands;
  const bool is_all = cut_item(*scene.input.plan, item, shown_pairs(scene), most, bands);
  if (is_complete != nullptr) *is_complete = *is_complete && is_all;
  for (const WorkBand& band : bands) add_shape(drawing, scene, band, color, width);
  return static_cast<int64_t>(bands.size());
}

void add_items(Drawing& drawing, const MaskScene& scene, const Projection& projection, Color color,
               float width) {
  if (projection.items.size() > kMostLitItems) return;
  size_t left = kMostLitBands;
  for (const ItemId& target : projection.items) {
    if (target.kind != StageKind::compute) continue;
    const auto& items = scene.input.plan->pass(target.direction).computes;
    if (target.index < 0 || target.index >= static_cast<int64_t>(items.size())) continue;
    left -= static_cast<size_t>(add_item(drawing, scene, items[target.index], left, color, width));
  }
}

Box band_box(const MaskScene& scene, Side side, int64_t begin, int64_t end) {
  const Axis& axis = scene.axis(side);
  const float lo = axis.pixel_of(static_cast<double>(begin));
  const float hi = std::max(lo + 2, axis.pixel_of(static_cast<double>(end)));
  const Box& square = scene.square;
  return side == Side::q ? Box{square.x0, lo, square.x1, hi} : Box{lo, square.y0, hi, square.y1};
}

/// Adds row bands of queries and column bands of keys, if they are few.
void add_ranges(Drawing& drawing, const MaskScene& scene, const Projection& projection, Color color,
                float width) {
  for (const Side side : {Side::q, Side::kv}) {
    const std::vector<TokenRange>& ranges = projection.tokens(side);
    // In a small square the outlines would hide the outlined area.
    if (ranges.size() > kMostOutlinedRanges ||
        scene.square.width() < kLeastRangeRoom * static_cast<float>(ranges.size()))
      continue;
    for (const TokenRange& range : ranges)
      drawing.add(OutlinedBox{band_box(scene, side, range.begin, range.end), color, width});
  }
}

void add_selected_pairs(Drawing& drawing, const MaskScene& scene) {
  const auto* pairs = std::get_if<PairRange>(&scene.input.selection);
  if (pairs == nullptr) return;
  const Box box{scene.k.pixel_of(static_cast<double>(pairs->k_begin)),
                scene.q.pixel_of(static_cast<double>(pairs->q_begin)),
                scene.k.pixel_of(static_cast<double>(pairs->k_end)),
                scene.q.pixel_of(static_cast<double>(pairs->q_end))};
  drawing.add(OutlinedBox{box, scene.input.theme->of(Role::selected), 2});
}

/// The box of ids [begin, end) on the strip of a side.
Box strip_box(const MaskScene& scene, Side side, const Box& strip, double begin, double end) {
  if (side == Side::q) return {strip.x0, scene.q.pixel_of(begin), strip.x1, scene.q.pixel_of(end)};
  return {scene.k.pixel_of(begin), strip.y0, scene.k.pixel_of(end), strip.y1};
}

/// Colour of tokens of a rank, of all ranks (q_owner), or of none.
Color owner_color(const MaskScene& scene, Side side, int32_t rank) {
  const Theme& theme = *scene.input.theme;
  if (rank >= 0) return theme.of_rank(rank, scene.input.plan->num_ranks());
  return theme.of(scene.input.plan->are_heads_owned(side) ? Role::raised : Role::padding);
}

void add_chunk_owners(Drawing& drawing, const MaskScene& scene, Side side, const Box& strip) {
  const PlanIndex& index = *scene.input.plan;
  const CellAxis& chunks =
      side == Side::q ? scene.picture.chunks.grid.q : scene.picture.chunks.grid.k;
  for (int64_t c = 0; c < chunks.count(); ++c) {
    const int32_t rank = index.owner(side, chunks.edges[c]).rank;
    Box box = strip_box(scene, side, strip, static_cast<double>(chunks.edges[c]),
                        static_cast<double>(chunks.edges[c + 1]));
    float& end = side == Side::q ? box.y1 : box.x1;
    if ((side == Side::q ? box.height() : box.width()) > 4) end -= 1;
    const Color color = owner_color(scene, side, rank);
    drawing.add(FilledBox{box, color});
    const std::string text = fmt::format("{}", rank);
    const float width = scene.input.text_width(text, kOwnerText, Face::mono);
    if (rank >= 0 && width + 2 <= box.width() && kOwnerText <= box.height())
      drawing.add(Label{box.center(), Anchor::center_middle, scene.input.theme->text_on(color),
                        kOwnerText, Face::mono, text});
  }
}

/// Every cell holds tokens of several ranks, so no rank is its owner.
void add_turns(Drawing& drawing, const MaskScene& scene, Side side, const Box& strip) {
  const Theme& theme = *scene.input.theme;
  const Color fill = theme.of_rank(0, 1);
  drawing.add(
      FilledBox{strip, fill, Hatch::diagonal, mix(fill, theme.of(Role::background), 0.45F)});
  if (side == Side::q) return;
  const std::string text = fmt::format("{} ranks, interleaved", scene.input.plan->num_ranks());
  const float width = scene.input.text_width(text, kOwnerText, Face::body) + 8;
  const Point at = strip.center();
  drawing.add(FilledBox{{at.x - width / 2, strip.y0, at.x + width / 2, strip.y1}, fill});
  drawing.add(Label{at, Anchor::center_middle, theme.text_on(fill), kOwnerText, Face::body, text});
}

void add_cell_owners(Drawing& drawing, const MaskScene& scene, Side side, const Box& strip) {
  const MaskPicture& picture = scene.picture;
  const CellAxis& cells = side == Side::q ? picture.cells.grid.q : picture.cells.grid.k;
  const std::vector<int32_t>& owners = picture.owners[side == Side::kv ? 1 : 0];
  if (owners.empty()) return;
  const double step = side == Side::q ? picture.q_step : picture.k_step;
  const auto begin = static_cast<double>(cells.begin());
  if (picture.is_strided && step > 1) return add_turns(drawing, scene, side, strip);
  Pixels pixels;
  pixels.box =
      strip_box(scene, side, strip, begin, begin + step * static_cast<double>(cells.count()));
  const auto count = static_cast<int32_t>(cells.count());
  pixels.width = side == Side::q ? 1 : count;
  pixels.height = side == Side::q ? count : 1;
  for (const int32_t rank : owners) pixels.colors.push_back(owner_color(scene, side, rank));
  drawing.add(std::move(pixels));
}

/// Adds marks next to the strip where a projection has ids; close marks are joined.
void add_range_marks(Drawing& drawing, const MaskScene& scene, Side side, const Box& strip,
                     const std::vector<TokenRange>& ranges, Color color) {
  const Axis& axis = scene.axis(side);
  float lo = 0, hi = -1e9F;
  size_t marks = 0;
  const auto flush = [&] {
    if (hi < lo || ++marks > kMostLitRanges) return;
    if (side == Side::q)
      drawing.add(FilledBox{{strip.x1 - 3, lo, strip.x1 + 1, hi}, color});
    else
      drawing.add(FilledBox{{lo, strip.y1 - 3, hi, strip.y1 + 1}, color});
  };
  for (const TokenRange& range : ranges) {
    const float begin = axis.pixel_of(static_cast<double>(range.begin));
    const float end = std::max(begin + 2, axis.pixel_of(static_cast<double>(range.end)));
    const float from = std::max(begin, axis.begin()), to = std::min(end, axis.end());
    if (to < from) continue;
    if (from > hi + 1) {
      flush();
      lo = from;
    }
    hi = std::max(hi, to);
  }
  flush();
}

}  // namespace

FocusWork add_focus_work(Drawing& drawing, const MaskScene& scene) {
  FocusWork focus;
  const PlanIndex& index = *scene.input.plan;
  drawing.add(PushClip{scene.square});
  const auto stages = static_cast<int32_t>(index.stages().size());
  for (int32_t s = scene.input.moment.first_stage;
       s < std::min(stages, scene.input.moment.end_stage); ++s) {
    const StageRef& stage = index.stages()[s];
    if (stage.kind != StageKind::compute) continue;
    const auto& items = index.pass(stage.direction).computes;
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      const ComputeItem& item = items[i];
      if (to_index(item.rank) != scene.input.focus_rank || item.num_slices == 0) continue;
      ++focus.items;
      focus.pairs += item.visible_pairs / std::max(1, item.heads.size());
      const size_t most = kMostFocusBands - static_cast<size_t>(focus.drawn);
      const float width = item.num_slices > kManyBands ? 1.0F : 2.0F;
      focus.drawn += add_item(drawing, scene, item, most, scene.input.theme->of(Role::accent),
                              width, &focus.is_complete);
    }
  }
  drawing.add(PopClip{});
  return focus;
}

void add_mask_lights(Drawing& drawing, const MaskScene& scene) {
  const Theme& theme = *scene.input.theme;
  drawing.add(PushClip{scene.square});
  add_ranges(drawing, scene, *scene.input.selected, theme.of(Role::related), 1);
  const bool is_item = std::holds_alternative<ItemId>(scene.input.selection);
  add_items(drawing, scene, *scene.input.selected,
            theme.of(is_item ? Role::selected : Role::related), 2);
  add_selected_pairs(drawing, scene);
  add_items(drawing, scene, *scene.input.hovered, theme.of(Role::hovered), 1);
  drawing.add(PopClip{});
}

void add_owner_strip(Drawing& drawing, const MaskScene& scene, Side side, const Box& strip) {
  drawing.add(PushClip{strip});
  if (scene.picture.chunks.grid.cells() > 0)
    add_chunk_owners(drawing, scene, side, strip);
  else
    add_cell_owners(drawing, scene, side, strip);
  drawing.add(PopClip{});
  add_range_marks(drawing, scene, side, strip, scene.input.selected->tokens(side),
                  scene.input.theme->of(Role::related));
  add_range_marks(drawing, scene, side, strip, scene.input.hovered->tokens(side),
                  scene.input.theme->of(Role::hovered));
}

}  // namespace cpscope::gui
