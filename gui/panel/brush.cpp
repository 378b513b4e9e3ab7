#include "gui/panel/brush.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace cpscope::gui {

namespace {

constexpr float kFar = 1e6F;  // pixels: coordinates are clamped to it, since float loses fractions

float snap(float place) { return std::floor(std::clamp(place, -kFar, kFar) + 0.5F); }

Box intersect(const Box& a, const Box& b) {
  return {std::max(a.x0, b.x0), std::max(a.y0, b.y0), std::min(a.x1, b.x1), std::min(a.y1, b.y1)};
}

/// `place` modulo `side`, in [0, side).
float phase_of(float place, float side) { return place - std::floor(place / side) * side; }

}  // namespace

Brush::Brush(const PaintPlace& place) : place_(place), scale_(place.fonts->scale) {
  // The origin is rounded to a whole pixel, so a drawing looks the same wherever its panel is.
  place_.origin = {std::floor(place.origin.x + 0.5F), std::floor(place.origin.y + 0.5F)};
}

Box Brush::on_pixels(const Box& box) const {
  if (!(box.x1 > box.x0) || !(box.y1 > box.y0)) return {};
  const ImVec2 low = at({box.x0, box.y0}), high = at({box.x1, box.y1});
  Box pixels{snap(low.x), snap(low.y), snap(high.x), snap(high.y)};
  pixels.x1 = std::max(pixels.x1, pixels.x0 + 1);
  pixels.y1 = std::max(pixels.y1, pixels.y0 + 1);
  return pixels;
}

float Brush::pixels_of(float width) const {
  return std::max(1.F, std::floor(width * scale_ + 0.5F));
}

Box Brush::visible() const {
  const ImVec2 low = list().GetClipRectMin(), high = list().GetClipRectMax();
  return {low.x, low.y, high.x, high.y};
}

bool Brush::is_visible(const Box& pixels) const {
  const Box shown = visible();
  return pixels.x1 > shown.x0 && pixels.x0 < shown.x1 && pixels.y1 > shown.y0 &&
         pixels.y0 < shown.y1;
}

void Brush::fill(const Box& pixels, Color color) const {
  const Box cut = intersect(pixels, visible());
  if (color.a == 0 || !(cut.x1 > cut.x0) || !(cut.y1 > cut.y0)) return;
  list().PrimReserve(6, 4);
  list().PrimRect({cut.x0, cut.y0}, {cut.x1, cut.y1}, pack_color(color));
}

void Brush::hatch(const Box& pixels, Hatch hatch, Color color) const {
  const Box cut = intersect(pixels, visible());
  if (hatch == Hatch::none || color.a == 0 || !(cut.x1 > cut.x0) || !(cut.y1 > cut.y0)) return;
  const HatchTile& tile = place_.fonts->hatches[static_cast<size_t>(hatch)];
  if (tile.side > 0) {
    hatch_tiles(cut, tile, pack_color(color));
  } else {
    hatch_lines(cut, hatch, pack_color(color));
  }
}

void Brush::hatch_tiles(const Box& pixels, const HatchTile& tile, ImU32 color) const {
  const auto side = static_cast<float>(tile.side);
  const float texel_u = (tile.u1 - tile.u0) / side, texel_v = (tile.v1 - tile.v0) / side;
  float height = 0;
  for (float y = pixels.y0; y < pixels.y1; y += height) {
    const float down = phase_of(y - place_.origin.y, side);
    height = std::min(side - down, pixels.y1 - y);
    float width = 0;
    for (float x = pixels.x0; x < pixels.x1; x += width) {
      const float across = phase_of(x - place_.origin.x, side);
      width = std::min(side - across, pixels.x1 - x);
      const float u = tile.u0 + across * texel_u, v = tile.v0 + down * texel_v;
      list().PrimReserve(6, 4);
      list().PrimRectUV({x, y}, {x + width, y + height}, {u, v},
                        {u + width * texel_u, v + height * texel_v}, color);
    }
  }
}

void Brush::hatch_lines(const Box& pixels, Hatch hatch, ImU32 color) const {
  const float period = std::max(4.F, std::floor(8 * scale_ + 0.5F));
  if (hatch == Hatch::dots) {
    const float dot = std::max(1.F, std::floor(2 * scale_));
    const float half = period / 2;
    for (float y = pixels.y0 - phase_of(pixels.y0 - place_.origin.y, half); y < pixels.y1;
         y += half) {
      const bool is_odd = phase_of(y - place_.origin.y, period) >= half;
      float x = pixels.x0 - phase_of(pixels.x0 - place_.origin.x, period) + (is_odd ? half : 0);
      for (; x < pixels.x1; x += period) {
        const Box cut = intersect({x, y, x + dot, y + dot}, pixels);
        if (!(cut.x1 > cut.x0) || !(cut.y1 > cut.y0)) continue;
        list().PrimReserve(6, 4);
        list().PrimRect({cut.x0, cut.y0}, {cut.x1, cut.y1}, color);
      }
    }
    return;
  }
  const float span = pixels.x1 - pixels.x0 + pixels.y1 - pixels.y0;
  list().PushClipRect({pixels.x0, pixels.y0}, {pixels.x1, pixels.y1}, true);
  const float rising = phase_of(pixels.x0 + pixels.y0 - place_.origin.x - place_.origin.y, period);
  const float falling = phase_of(pixels.x0 - pixels.y1 - place_.origin.x + place_.origin.y, period);
  for (float along = -rising; along < span; along += period) {
    const float x = pixels.x0 + along;
    list().AddLine({x, pixels.y0}, {x - (pixels.y1 - pixels.y0), pixels.y1}, color, scale_);
  }
  for (float along = -falling; hatch == Hatch::cross && along < span; along += period) {
    const float x = pixels.x0 + along;
    list().AddLine({x, pixels.y1}, {x - (pixels.y1 - pixels.y0), pixels.y0}, color, scale_);
  }
  list().PopClipRect();
}

void paint_box(const Brush& brush, const FilledBox& mark) {
  const Box box = brush.on_pixels(mark.box);
  if (!(box.x1 > box.x0) || !brush.is_visible(box)) return;
  const float least = std::min(box.width(), box.height());
  const float rounding = std::min(mark.rounding * brush.scale(), least / 2);
  if (rounding < 1) {
    brush.fill(box, mark.color);
    brush.hatch(box, mark.hatch, mark.hatch_color);
    return;
  }
  brush.list().AddRectFilled({box.x0, box.y0}, {box.x1, box.y1}, pack_color(mark.color), rounding);
  // A round corner leaves 0.29 of its radius free on the diagonal.
  brush.hatch(box.inset(std::ceil(rounding * 0.29F)), mark.hatch, mark.hatch_color);
}

namespace {

/// Draws dashes along an edge of a box, as far as it is visible.
void dash_edge(const Brush& brush, const Box& edge, bool is_across, Color color) {
  const float on = std::max(2.F, std::floor(4 * brush.scale() + 0.5F));
  const float period = on + std::max(2.F, std::floor(3 * brush.scale() + 0.5F));
  const Box shown = brush.visible();
  const float begin = is_across ? edge.x0 : edge.y0, end = is_across ? edge.x1 : edge.y1;
  const float first = is_across ? shown.x0 : shown.y0, last = is_across ? shown.x1 : shown.y1;
  const float skipped = std::max(0.F, std::floor((first - begin) / period)) * period;
  for (float place = begin + skipped; place < std::min(end, last); place += period) {
    const float stop = std::min(place + on, end);
    brush.fill(is_across ? Box{place, edge.y0, stop, edge.y1} : Box{edge.x0, place, edge.x1, stop},
               color);
  }
}

}  // namespace

void paint_outline(const Brush& brush, const OutlinedBox& mark) {
  const Box box = brush.on_pixels(mark.box);
  if (!(box.x1 > box.x0) || !brush.is_visible(box)) return;
  const float width = brush.pixels_of(mark.width);
  if (width * 2 >= box.width() || width * 2 >= box.height()) {
    brush.fill(box, mark.color);
    return;
  }
  const float rounding =
      std::min(mark.rounding * brush.scale(), std::min(box.width(), box.height()) / 2);
  if (rounding >= 1 && !mark.is_dashed) {
    const float inset = (width - 1) / 2;
    brush.list().AddRect({box.x0 + inset, box.y0 + inset}, {box.x1 - inset, box.y1 - inset},
                         pack_color(mark.color), rounding, 0, width);
    return;
  }
  const Box edges[] = {{box.x0, box.y0, box.x1, box.y0 + width},
                       {box.x0, box.y1 - width, box.x1, box.y1},
                       {box.x0, box.y0 + width, box.x0 + width, box.y1 - width},
                       {box.x1 - width, box.y0 + width, box.x1, box.y1 - width}};
  for (int32_t i = 0; i < 4; ++i) {
    if (mark.is_dashed) {
      dash_edge(brush, edges[i], i < 2, mark.color);
    } else {
      brush.fill(edges[i], mark.color);
    }
  }
}

}  // namespace cpscope::gui
