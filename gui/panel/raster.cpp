#include "gui/panel/raster.h"

#include "gui/panel/imgui_compat.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

namespace cpscope::gui {

namespace {

constexpr int32_t kSub = 16;           // subpixel positions per pixel in each direction
constexpr float kFarthest = 32'768.F;  // pixels
constexpr int32_t kFraction = 16;      // fractional bits of colours and texels

constexpr Color kWhite{255, 255, 255, 255};

/// [x0, x1) x [y0, y1) of whole pixels.
struct PixelBox {
  int32_t x0 = 0, y0 = 0, x1 = 0, y1 = 0;
};

/// A vertex on the 1/16-pixel grid. Values: r, g, b, a, u, v; texels and colours in 1/2^16.
struct Corner {
  int32_t x = 0, y = 0;
  std::array<int64_t, 6> values{};
};

enum Value : size_t { kRed, kGreen, kBlue, kAlpha, kU, kV };

/// State shared by all triangles of one draw command.
struct Canvas {
  Image* target = nullptr;
  PixelBox clip;
  RasterTexture texture;
};

uint8_t divide_by_255(uint32_t product) {
  const uint32_t rounded = product + 128;
  return static_cast<uint8_t>((rounded + (rounded >> 8)) >> 8);
}

void paint_over(Color& pixel, Color source) {
  if (source.a == 255) {
    pixel = source;
    return;
  }
  const uint32_t a = source.a, rest = 255U - a;
  pixel.r = divide_by_255(source.r * a + pixel.r * rest);
  pixel.g = divide_by_255(source.g * a + pixel.g * rest);
  pixel.b = divide_by_255(source.b * a + pixel.b * rest);
  pixel.a = divide_by_255(255U * a + pixel.a * rest);
}

Color multiply(Color a, Color b) {
  if (b == kWhite) return a;
  if (b.r == 255 && b.g == 255 && b.b == 255) {
    return a.with_alpha(divide_by_255(static_cast<uint32_t>(a.a) * b.a));
  }
  return {divide_by_255(static_cast<uint32_t>(a.r) * b.r),
          divide_by_255(static_cast<uint32_t>(a.g) * b.g),
          divide_by_255(static_cast<uint32_t>(a.b) * b.b),
          divide_by_255(static_cast<uint32_t>(a.a) * b.a)};
}

/// The four texels around a position, and their weights, whose sum is 2^16.
struct Blend {
  const Color* texels[4];
  uint32_t weights[4];

  uint8_t mix(uint8_t Color::*channel) const {
    uint32_t sum = 32'768;
    for (size_t i = 0; i < 4; ++i) sum += texels[i]->*channel * weights[i];
    return static_cast<uint8_t>(sum >> 16);
  }
};

/// One axis of a position between texels: the two texels and the weight of the second one, of 256.
struct Between {
  int32_t first = 0, second = 0;
  uint32_t share = 0;
};

Between place_between(int64_t place, int32_t texels) {
  // Texel centres are at halves. Rounding to 1/256 hides differences in the last bits of
  // coordinates.
  const int64_t at = (place + 128 - (1 << (kFraction - 1))) >> 8;
  const auto inside = [texels](int64_t texel) {
    return static_cast<int32_t>(std::clamp<int64_t>(texel, 0, texels - 1));
  };
  return {inside(at >> 8), inside((at >> 8) + 1), static_cast<uint32_t>(at & 255)};
}

Between place_nearest(int64_t place, int32_t texels) {
  const auto texel = static_cast<int32_t>(std::clamp<int64_t>(place >> kFraction, 0, texels - 1));
  return {texel, texel, 0};
}

Color texel_between(const RasterTexture& texture, const Between& x, const Between& y) {
  const Color* top = &texture.image->at(0, y.first);
  if ((x.share | y.share) == 0) return top[x.first];
  const Color* below = &texture.image->at(0, y.second);
  const Blend blend{{top + x.first, top + x.second, below + x.first, below + x.second},
                    {(256 - x.share) * (256 - y.share), x.share * (256 - y.share),
                     (256 - x.share) * y.share, x.share * y.share}};
  if (texture.is_coverage) return {255, 255, 255, blend.mix(&Color::a)};
  return {blend.mix(&Color::r), blend.mix(&Color::g), blend.mix(&Color::b), blend.mix(&Color::a)};
}

Color texel_of(const RasterTexture& texture, int64_t u, int64_t v) {
  const int32_t width = texture.image->width, height = texture.image->height;
  return texture.is_smooth
             ? texel_between(texture, place_between(u, width), place_between(v, height))
             : texel_between(texture, place_nearest(u, width), place_nearest(v, height));
}

void fill_row(Color* pixel, int64_t count, Color color) {
  if (color.a == 255) {
    std::fill_n(pixel, count, color);
  } else if (color.a != 0) {
    for (int64_t i = 0; i < count; ++i) paint_over(pixel[i], color);
  }
}

int64_t divide_down(int64_t value, int64_t by) {
  return value >= 0 ? value / by : -((-value + by - 1) / by);
}

/// The first pixel whose centre is at or right of a position on the 1/16 grid.
int32_t first_center(int32_t place) {
  return static_cast<int32_t>(divide_down(int64_t{place} + kSub / 2 - 1, kSub));
}

/// The vertex on the grid, or nothing if a coordinate is NaN.
std::optional<Corner> place_corner(const ImDrawVert& vertex, const ImDrawData& data,
                                   const RasterTexture& texture) {
  const float x = (vertex.pos.x - data.DisplayPos.x) * data.FramebufferScale.x;
  const float y = (vertex.pos.y - data.DisplayPos.y) * data.FramebufferScale.y;
  if (!std::isfinite(x) || !std::isfinite(y)) return std::nullopt;
  const auto to_grid = [](float place) {
    return static_cast<int32_t>(std::floor(std::clamp(place, -kFarthest, kFarthest) * kSub + 0.5F));
  };
  const auto to_texels = [](float share, int32_t texels) {
    const float place = std::clamp(share, -4.F, 4.F) * static_cast<float>(texels);
    return static_cast<int64_t>(std::floor(place * (1 << kFraction) + 0.5F));
  };
  const ImU32 color = vertex.col;
  const auto channel = [color](int shift) {
    return static_cast<int64_t>(color >> shift & 255U) << kFraction;
  };
  return Corner{to_grid(x),
                to_grid(y),
                {channel(IM_COL32_R_SHIFT), channel(IM_COL32_G_SHIFT), channel(IM_COL32_B_SHIFT),
                 channel(IM_COL32_A_SHIFT), to_texels(vertex.uv.x, texture.image->width),
                 to_texels(vertex.uv.y, texture.image->height)}};
}

Color color_of(const std::array<int64_t, 6>& values) {
  const auto channel = [](int64_t value) {
    constexpr int64_t kHalf = int64_t{1} << (kFraction - 1);
    return static_cast<uint8_t>(std::clamp<int64_t>((value + kHalf) >> kFraction, 0, 255));
  };
  return {channel(values[kRed]), channel(values[kGreen]), channel(values[kBlue]),
          channel(values[kAlpha])};
}

bool have_same(const Corner& a, const Corner& b, size_t first, size_t count) {
  return std::equal(a.values.begin() + first, a.values.begin() + first + count,
                    b.values.begin() + first);
}

/// A triangle, and the increments of its values from pixel to pixel.
class Triangle {
 public:
  /// Vertices in either order; returns false for a triangle without area.
  bool set(Corner a, Corner b, Corner c) {
    int64_t area = cross(a, b, c);
    if (area == 0) return false;
    if (area < 0) {
      std::swap(b, c);
      area = -area;
    }
    corners_ = {a, b, c};
    has_flat_color_ = have_same(a, b, kRed, 4) && have_same(a, c, kRed, 4);
    has_flat_texel_ = have_same(a, b, kU, 2) && have_same(a, c, kU, 2);
    grow_x_ = grow_y_ = {};
    for (size_t i = 0; i < 3; ++i) edges_[i] = make_edge(corners_[i], corners_[(i + 1) % 3]);
    const size_t first = has_flat_color_ ? kU : kRed, end = has_flat_texel_ ? kU : kV + 1;
    for (size_t i = first; i < end; ++i) set_growth(i, area);
    return true;
  }

  void paint(const Canvas& canvas) const {
    const auto [low, high] = std::minmax({corners_[0].y, corners_[1].y, corners_[2].y});
    const int32_t y0 = std::max(canvas.clip.y0, first_center(low));
    const int32_t y1 = std::min(canvas.clip.y1, first_center(high));
    const auto [left, right] = std::minmax({corners_[0].x, corners_[1].x, corners_[2].x});
    const int32_t x0 = std::max(canvas.clip.x0, first_center(left));
    const int32_t x1 = std::min(canvas.clip.x1, first_center(right));
    if (x0 >= x1) return;
    const bool is_flat = has_flat_color_ && has_flat_texel_;
    const Color flat =
        is_flat ? multiply(color_of(corners_[0].values), flat_texel(canvas)) : Color{};
    if (is_flat && flat.a == 0) return;
    for (int32_t y = y0; y < y1; ++y) {
      int64_t begin = x0, end = x1;
      for (const Edge& edge : edges_) narrow(edge, y, begin, end);
      if (begin >= end) continue;
      Color* row = &canvas.target->at(static_cast<int32_t>(begin), y);
      if (is_flat) {
        fill_row(row, end - begin, flat);
      } else {
        paint_row(canvas, row, begin, end, y);
      }
    }
  }

 private:
  /// A half plane: inside where base + along_x * x + along_y * y >= 0, at the centre of pixel (x,
  /// y).
  struct Edge {
    int64_t base = 0, along_x = 0, along_y = 0;
  };

  static int64_t cross(const Corner& a, const Corner& b, const Corner& c) {
    return int64_t{b.x - a.x} * (c.y - a.y) - int64_t{b.y - a.y} * (c.x - a.x);
  }

  static Edge make_edge(const Corner& from, const Corner& to) {
    const int64_t dx = to.x - from.x, dy = to.y - from.y;
    // With y downwards and clockwise vertices, inside is right of an edge. A centre on an edge
    // belongs to the triangle if the edge is a top or left one.
    const bool owns_edge = dy < 0 || (dy == 0 && dx > 0);
    const int64_t half = kSub / 2;
    return {dx * (half - from.y) - dy * (half - from.x) - (owns_edge ? 0 : 1), -dy * kSub,
            dx * kSub};
  }

  static void narrow(const Edge& edge, int32_t y, int64_t& begin, int64_t& end) {
    const int64_t here = edge.base + edge.along_y * y;
    if (edge.along_x > 0) {
      begin = std::max(begin, -divide_down(here, edge.along_x));
    } else if (edge.along_x < 0) {
      end = std::min(end, divide_down(here, -edge.along_x) + 1);
    } else if (here < 0) {
      end = begin;
    }
  }

  void set_growth(size_t value, int64_t area) {
    const int64_t b = corners_[1].values[value] - corners_[0].values[value];
    const int64_t c = corners_[2].values[value] - corners_[0].values[value];
    if (b == 0 && c == 0) return;
    const int64_t bx = corners_[1].x - corners_[0].x, by = corners_[1].y - corners_[0].y;
    const int64_t cx = corners_[2].x - corners_[0].x, cy = corners_[2].y - corners_[0].y;
    grow_x_[value] = divide_down(multiply_exactly(b, cy, c, by), area);
    grow_y_[value] = divide_down(multiply_exactly(c, bx, b, cx), area);
  }

  /// (p * q - r * s) * 16: the increment of a value over one pixel, times the area.
  static int64_t multiply_exactly(int64_t p, int64_t q, int64_t r, int64_t s) {
    return (p * q - r * s) * kSub;
  }

  Color flat_texel(const Canvas& canvas) const {
    return texel_of(canvas.texture, corners_[0].values[kU], corners_[0].values[kV]);
  }

  /// Values at the centre of a pixel. The increments of slivers can be huge, but the values are in
  /// range at every centre that they cover: unsigned arithmetic may wrap around in between.
  std::array<int64_t, 6> values_at(int64_t x, int64_t y) const {
    const auto dx = static_cast<uint64_t>(x * kSub + kSub / 2 - corners_[0].x);
    const auto dy = static_cast<uint64_t>(y * kSub + kSub / 2 - corners_[0].y);
    std::array<int64_t, 6> values = corners_[0].values;
    for (size_t i = 0; i < values.size(); ++i) {
      const uint64_t grown =
          static_cast<uint64_t>(grow_x_[i]) * dx + static_cast<uint64_t>(grow_y_[i]) * dy;
      values[i] += static_cast<int64_t>(grown) / kSub;
    }
    return values;
  }

  void paint_row(const Canvas& canvas, Color* pixel, int64_t begin, int64_t end, int32_t y) const {
    std::array<int64_t, 6> values = values_at(begin, y);
    Color color = color_of(values);
    const Color one_texel = has_flat_texel_ ? flat_texel(canvas) : Color{};
    for (int64_t x = begin; x < end; ++x, ++pixel) {
      Color source = color;
      if (!has_flat_color_) {
        source = color_of(values);
        step(values, kRed, kAlpha);
      }
      if (has_flat_texel_) {
        source = multiply(source, one_texel);
      } else {
        source = multiply(source, texel_of(canvas.texture, values[kU], values[kV]));
        step(values, kU, kV);
      }
      if (source.a != 0) paint_over(*pixel, source);
    }
  }

  /// Moves one pixel to the right. Unsigned, since slivers may overflow after their last pixel.
  void step(std::array<int64_t, 6>& values, size_t first, size_t last) const {
    for (size_t i = first; i <= last; ++i) {
      values[i] = static_cast<int64_t>(static_cast<uint64_t>(values[i]) +
                                       static_cast<uint64_t>(grow_x_[i]));
    }
  }

  std::array<Corner, 3> corners_{};
  std::array<Edge, 3> edges_{};
  std::array<int64_t, 6> grow_x_{}, grow_y_{};  // increment of a value over one pixel
  bool has_flat_color_ = false, has_flat_texel_ = false;
};

/// A value that changes linearly along one axis of an axis-parallel box, at the centre of a pixel.
struct Growth {
  int64_t from = 0, per_pixel = 0;  // in 1/2^16; `from` at the first vertex

  Growth(int64_t first, int64_t last, int32_t begin, int32_t end)
      : from(first), per_pixel(divide_down((last - first) * kSub, end - begin)), begin_(begin) {}

  int64_t at(int32_t pixel) const {
    return from + per_pixel * (pixel * kSub + kSub / 2 - begin_) / kSub;
  }

 private:
  int32_t begin_ = 0;
};

/// Paints an axis-parallel box of one colour with the texels between two vertices; `low` is the top
/// left one.
void paint_textured_box(const Canvas& canvas, const PixelBox& box, const Corner& low,
                        const Corner& high) {
  const Color color = color_of(low.values);
  const RasterTexture& texture = canvas.texture;
  const Growth u(low.values[kU], high.values[kU], low.x, high.x);
  const Growth v(low.values[kV], high.values[kV], low.y, high.y);
  const auto place = [&](int64_t at, int32_t texels) {
    return texture.is_smooth ? place_between(at, texels) : place_nearest(at, texels);
  };
  // Texel positions along a row are the same in all rows: computed once for a group of columns.
  std::array<Between, 64> columns;
  for (int32_t x0 = box.x0; x0 < box.x1; x0 += static_cast<int32_t>(columns.size())) {
    const int32_t x1 = std::min(box.x1, x0 + static_cast<int32_t>(columns.size()));
    for (int32_t x = x0; x < x1; ++x) {
      columns[static_cast<size_t>(x - x0)] = place(u.at(x), texture.image->width);
    }
    for (int32_t y = box.y0; y < box.y1; ++y) {
      const Between row = place(v.at(y), texture.image->height);
      Color* pixel = &canvas.target->at(x0, y);
      for (int32_t i = 0; i < x1 - x0; ++i, ++pixel) {
        const Color texel = texel_between(texture, columns[static_cast<size_t>(i)], row);
        if (texel.a == 0) continue;
        const Color source = multiply(color, texel);
        if (source.a != 0) paint_over(*pixel, source);
      }
    }
  }
}

/// Paints an axis-parallel box of one colour, given as two triangles, in one step: most shapes are
/// such boxes. Returns false for anything else.
bool paint_upright_box(const Canvas& canvas, const std::array<Corner, 4>& corners) {
  const auto& [a, b, c, d] = corners;
  if (a.y != b.y || b.x != c.x || c.y != d.y || d.x != a.x || a.x >= c.x || a.y >= c.y)
    return false;
  const bool is_plain = have_same(a, b, kU, 2) && have_same(a, c, kU, 2) && have_same(a, d, kU, 2);
  const bool is_texture = a.values[kU] == d.values[kU] && b.values[kU] == c.values[kU] &&
                          a.values[kV] == b.values[kV] && c.values[kV] == d.values[kV];
  for (const Corner* other : {&b, &c, &d}) {
    if (!have_same(a, *other, kRed, 4)) return false;
  }
  if (!is_plain && !is_texture) return false;
  const PixelBox box{
      std::max(canvas.clip.x0, first_center(a.x)), std::max(canvas.clip.y0, first_center(a.y)),
      std::min(canvas.clip.x1, first_center(c.x)), std::min(canvas.clip.y1, first_center(c.y))};
  if (box.x0 >= box.x1) return true;
  if (!is_plain) {
    paint_textured_box(canvas, box, a, c);
    return true;
  }
  const Color color =
      multiply(color_of(a.values), texel_of(canvas.texture, a.values[kU], a.values[kV]));
  for (int32_t y = box.y0; y < box.y1; ++y) {
    fill_row(&canvas.target->at(box.x0, y), box.x1 - box.x0, color);
  }
  return true;
}

/// The scissor rectangle of a command, computed like the OpenGL backend does.
PixelBox scissors_of(const ImDrawCmd& command, const ImDrawData& data, const Image& target) {
  const auto clamp = [](float place, int32_t most) {
    return static_cast<int32_t>(std::clamp(place, 0.F, static_cast<float>(most)));
  };
  const ImVec2 origin = data.DisplayPos, scale = data.FramebufferScale;
  return {clamp((command.ClipRect.x - origin.x) * scale.x, target.width),
          clamp((command.ClipRect.y - origin.y) * scale.y, target.height),
          clamp((command.ClipRect.z - origin.x) * scale.x, target.width),
          clamp((command.ClipRect.w - origin.y) * scale.y, target.height)};
}

void paint_command(const Canvas& canvas, const ImDrawData& data, const ImDrawList& list,
                   const ImDrawCmd& command) {
  const ImDrawVert* vertices = list.VtxBuffer.Data + command.VtxOffset;
  const ImDrawIdx* indices = list.IdxBuffer.Data + command.IdxOffset;
  const auto corner_of = [&](ImDrawIdx index) {
    return place_corner(vertices[index], data, canvas.texture);
  };
  Triangle triangle;
  for (unsigned int i = 0; i + 3 <= command.ElemCount; i += 3) {
    const ImDrawIdx* index = indices + i;
    const auto a = corner_of(index[0]), b = corner_of(index[1]), c = corner_of(index[2]);
    if (!a || !b || !c) continue;
    if (i + 6 <= command.ElemCount && index[3] == index[0] && index[4] == index[2]) {
      const auto d = corner_of(index[5]);
      if (d && paint_upright_box(canvas, {*a, *b, *c, *d})) {
        i += 3;
        continue;
      }
    }
    if (triangle.set(*a, *b, *c)) triangle.paint(canvas);
  }
}

}  // namespace

void rasterise(const ImDrawData& data, const FindTexture& find_texture, Image& target) {
  for (int i = 0; i < data.CmdListsCount; ++i) {
    const ImDrawList& list = *data.CmdLists[i];
    for (const ImDrawCmd& command : list.CmdBuffer) {
      if (command.UserCallback != nullptr || command.ElemCount == 0) continue;
      const Canvas canvas{&target, scissors_of(command, data, target),
                          find_texture(compat::to_number(command.GetTexID()))};
      if (canvas.texture.image == nullptr || canvas.clip.x0 >= canvas.clip.x1 ||
          canvas.clip.y0 >= canvas.clip.y1) {
        continue;
      }
      paint_command(canvas, data, list, command);
    }
  }
}

}  // namespace cpscope::gui
