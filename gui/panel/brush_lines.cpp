#include "gui/panel/brush.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace cpscope::gui {

namespace {

struct Segment {
  ImVec2 from, to;
};

float length_of(const Segment& s) { return std::hypot(s.to.x - s.from.x, s.to.y - s.from.y); }

// Shares are double: ends may be so far outside the screen that float cannot resolve a pixel.
ImVec2 between(const Segment& s, double share) {
  const auto mix = [share](double from, double to) {
    return static_cast<float>(from + (to - from) * share);
  };
  return {mix(s.from.x, s.to.x), mix(s.from.y, s.to.y)};
}

/// The part [begin, end] of a segment inside a box: Liang and Barsky 1984. begin > end: none.
std::pair<double, double> cut_share(const Segment& s, const Box& box) {
  const double x = s.from.x, y = s.from.y, dx = s.to.x - x, dy = s.to.y - y;
  const double steps[] = {-dx, dx, -dy, dy};
  const double rooms[] = {x - box.x0, box.x1 - x, y - box.y0, box.y1 - y};
  double begin = 0, end = 1;
  for (int32_t i = 0; i < 4; ++i) {
    if (steps[i] == 0) {
      if (rooms[i] < 0) return {1.0, 0.0};
    } else if (steps[i] < 0) {
      begin = std::max(begin, rooms[i] / steps[i]);
    } else {
      end = std::min(end, rooms[i] / steps[i]);
    }
  }
  return {begin, end};
}

/// Edges are anti-aliased outwards, and the point order defines outwards: clockwise on the screen.
void fill_convex(const Brush& brush, std::vector<ImVec2>& points, Color color) {
  float area = 0;
  for (size_t i = 0; i < points.size(); ++i) {
    const ImVec2 &a = points[i], &b = points[(i + 1) % points.size()];
    area += a.x * b.y - b.x * a.y;
  }
  if (area < 0) std::reverse(points.begin(), points.end());
  brush.list().AddConvexPolyFilled(points.data(), static_cast<int>(points.size()),
                                   pack_color(color));
}

/// An axis-parallel line as a box on whole pixels: sharp, where a slanted line would be
/// anti-aliased.
Box upright_box(const Brush& brush, const Segment& s, float width) {
  const bool is_across = s.from.y == s.to.y;
  const float middle = is_across ? s.from.y : s.from.x;
  const float edge = std::floor(middle - (width - 1) / 2 + 0.5F);
  const auto ends = is_across ? std::minmax(s.from.x, s.to.x) : std::minmax(s.from.y, s.to.y);
  const float begin = std::floor(ends.first + 0.5F);
  const float end = std::max(begin + 1, std::floor(ends.second + 0.5F));
  (void)brush;
  return is_across ? Box{begin, edge, end, edge + width} : Box{edge, begin, edge + width, end};
}

void stroke(const Brush& brush, const Segment& s, Color color, float width) {
  if (s.from.x == s.to.x || s.from.y == s.to.y) {
    brush.fill(upright_box(brush, s, std::max(1.F, std::floor(width + 0.5F))), color);
  } else {
    brush.list().AddLine(s.from, s.to, pack_color(color), width);
  }
}

void stroke_dashed(const Brush& brush, const Segment& s, Color color, float width) {
  const double on = 4 * brush.scale(), period = 7 * brush.scale(), length = length_of(s);
  const auto [begin, end] = cut_share(s, brush.visible().inset(-width));
  if (begin > end) return;
  for (double place = std::floor(begin * length / period) * period; place < end * length;
       place += period) {
    const double stop = std::min(place + on, length);
    stroke(brush, {between(s, place / length), between(s, stop / length)}, color, width);
  }
}

/// Paints an arrow head at the end of the segment; returns the share of the segment that it covers.
float paint_head(const Brush& brush, const Segment& s, Color color, float width) {
  const float length = length_of(s);
  const float reach = std::min(length, (5 + 2 * width / brush.scale()) * brush.scale());
  const float half = reach * 0.42F;
  const ImVec2 ahead = {(s.to.x - s.from.x) / length, (s.to.y - s.from.y) / length};
  // Lines are drawn through the middle of their first pixel; the tip is there, too.
  const ImVec2 tip = {s.to.x + 0.5F, s.to.y + 0.5F};
  const ImVec2 back = {tip.x - ahead.x * reach, tip.y - ahead.y * reach};
  std::vector<ImVec2> points = {tip,
                                {back.x - ahead.y * half, back.y + ahead.x * half},
                                {back.x + ahead.y * half, back.y - ahead.x * half}};
  fill_convex(brush, points, color);
  return reach * 0.8F;
}

/// The part of a polygon on one side of a line: Sutherland and Hodgman 1974.
template <class Inside>
std::vector<ImVec2> cut_side(const std::vector<ImVec2>& points, Inside depth_of) {
  std::vector<ImVec2> kept;
  for (size_t i = 0; i < points.size(); ++i) {
    const ImVec2 &a = points[i], &b = points[(i + 1) % points.size()];
    const double at_a = depth_of(a), at_b = depth_of(b);
    if (at_a >= 0) kept.push_back(a);
    if ((at_a >= 0) != (at_b >= 0)) kept.push_back(between({a, b}, at_a / (at_a - at_b)));
  }
  return kept;
}

float smooth_step(float share) { return share * share * (3 - 2 * share); }

}  // namespace

void paint_line(const Brush& brush, const Line& mark) {
  Segment s{brush.at(mark.from), brush.at(mark.to)};
  const float length = length_of(s);
  if (!std::isfinite(length) || length == 0 || mark.color.a == 0) return;
  const float width = std::max(1.F, mark.width * brush.scale());
  const auto [begin, end] = cut_share(s, brush.visible().inset(-16 * brush.scale() - width));
  if (begin > end) return;
  if (mark.has_arrow && end == 1) {
    const float taken = paint_head(brush, s, mark.color, width);
    s.to = between(s, 1 - taken / length);
    if (taken >= length) return;
  }
  if (mark.is_dashed) {
    stroke_dashed(brush, s, mark.color, width);
  } else {
    stroke(brush, {between(s, begin), between(s, end)}, mark.color, width);
  }
}

void paint_polygon(const Brush& brush, const Polygon& mark) {
  std::vector<ImVec2> points;
  for (const Point point : mark.points) {
    points.push_back(brush.at(point));
    if (!std::isfinite(points.back().x) || !std::isfinite(points.back().y)) return;
  }
  const Box room = brush.visible().inset(-4);
  points = cut_side(points, [&](ImVec2 p) { return double{p.x} - room.x0; });
  points = cut_side(points, [&](ImVec2 p) { return double{room.x1} - p.x; });
  points = cut_side(points, [&](ImVec2 p) { return double{p.y} - room.y0; });
  points = cut_side(points, [&](ImVec2 p) { return double{room.y1} - p.y; });
  if (points.size() < 3 || mark.color.a == 0) return;
  fill_convex(brush, points, mark.color);
}

void paint_ribbon(const Brush& brush, const Ribbon& mark) {
  const ImVec2 top0 = brush.at({mark.top_x0, mark.top}), top1 = brush.at({mark.top_x1, mark.top});
  const ImVec2 end0 = brush.at({mark.bottom_x0, mark.bottom});
  const ImVec2 end1 = brush.at({mark.bottom_x1, mark.bottom});
  const Box frame{std::min(top0.x, end0.x), std::min(top0.y, end0.y), std::max(top1.x, end1.x),
                  std::max(top0.y, end0.y)};
  if (mark.color.a == 0 || !(frame.x1 >= frame.x0) || !(frame.y1 > frame.y0) ||
      !brush.is_visible(frame.inset(-1))) {
    return;
  }
  const Box room = brush.visible().inset(-64);
  const float drop = end0.y - top0.y;
  const float slant = std::max(std::abs(end0.x - top0.x), std::abs(end1.x - top1.x));
  // One strip for about six pixels of bend; a straight band needs only one.
  const int32_t strips =
      slant < 0.5F ? 1
                   : std::clamp(static_cast<int32_t>(std::max(std::abs(drop), slant) / 6), 6, 32);
  ImDrawList& list = brush.list();
  list.PrimReserve(strips * 18, (strips + 1) * 4);
  const unsigned int first = list._VtxCurrentIdx;
  const ImVec2 white = ImGui::GetFontTexUvWhitePixel();
  const ImU32 color = pack_color(mark.color), clear = pack_color(mark.color.with_alpha(0));
  for (int32_t i = 0; i <= strips; ++i) {
    const float share = static_cast<float>(i) / static_cast<float>(strips);
    const float bend = smooth_step(share), steep = 6 * share * (1 - share);
    const float y = top0.y + drop * share;
    const float x0 = top0.x + (end0.x - top0.x) * bend;
    // Never thinner than three quarters of a pixel, otherwise it would flicker.
    const float x1 = std::max(top1.x + (end1.x - top1.x) * bend, x0 + 0.75F);
    // Half a pixel across the edge, measured along x.
    const auto soft = [&](float run) { return 0.5F * std::hypot(1.F, run * steep / drop); };
    const float s0 = std::min(soft(end0.x - top0.x), 12.F),
                s1 = std::min(soft(end1.x - top1.x), 12.F);
    const float inner0 = std::min(x0 + s0, (x0 + x1) / 2),
                inner1 = std::max(x1 - s1, (x0 + x1) / 2);
    const auto place = [&](float x) {
      return ImVec2(std::clamp(x, room.x0, room.x1), std::clamp(y, room.y0, room.y1));
    };
    list.PrimWriteVtx(place(x0 - s0), white, clear);
    list.PrimWriteVtx(place(inner0), white, color);
    list.PrimWriteVtx(place(inner1), white, color);
    list.PrimWriteVtx(place(x1 + s1), white, clear);
  }
  for (int32_t i = 0; i < strips; ++i) {
    for (int32_t band = 0; band < 3; ++band) {
      const unsigned int a = first + static_cast<unsigned int>(i * 4 + band);
      for (const unsigned int corner : {a, a + 1, a + 5, a, a + 5, a + 4}) {
        list.PrimWriteIdx(static_cast<ImDrawIdx>(corner));
      }
    }
  }
}

}  // namespace cpscope::gui
