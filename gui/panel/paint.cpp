#include "gui/panel/paint.h"

#include "gui/draw/label_place.h"
#include "gui/panel/brush.h"
#include "gui/panel/fonts.h"
#include "gui/panel/imgui_compat.h"
#include "gui/panel/textures.h"

#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>

namespace cpscope::gui {

namespace {

// Fewer cells than this are cheaper as boxes, which also align exactly with their neighbours.
constexpr int64_t kMostCellsAsBoxes = 1024;

/// Paints cells as boxes on whole pixels, one for each run of equal cells in a row.
void paint_cells(const Brush& brush, const Pixels& mark, const Box& box) {
  const auto edge = [](float low, float high, int32_t index, int32_t count) {
    const float share = static_cast<float>(index) / static_cast<float>(count);
    return std::floor(low + (high - low) * share + 0.5F);
  };
  for (int32_t y = 0; y < mark.height; ++y) {
    const float top = edge(box.y0, box.y1, y, mark.height);
    const float bottom = edge(box.y0, box.y1, y + 1, mark.height);
    const Color* row =
        mark.colors.data() + static_cast<size_t>(y) * static_cast<size_t>(mark.width);
    for (int32_t x = 0; x < mark.width;) {
      int32_t end = x + 1;
      while (end < mark.width && row[end] == row[x]) ++end;
      brush.fill(
          {edge(box.x0, box.x1, x, mark.width), top, edge(box.x0, box.x1, end, mark.width), bottom},
          row[x]);
      x = end;
    }
  }
}

struct PaintMark {
  const Brush& brush;
  int32_t& open_clips;

  void operator()(const FilledBox& mark) const { paint_box(brush, mark); }
  void operator()(const OutlinedBox& mark) const { paint_outline(brush, mark); }
  void operator()(const Line& mark) const { paint_line(brush, mark); }
  void operator()(const Polygon& mark) const { paint_polygon(brush, mark); }
  void operator()(const Ribbon& mark) const { paint_ribbon(brush, mark); }
  void operator()(const Label& mark) const { paint_label(brush, mark); }
  void operator()(const Pixels& mark) const { paint_pixels(brush, mark); }
  void operator()(const PushClip& mark) const {
    const Box box = brush.on_pixels(mark.box);
    brush.list().PushClipRect({box.x0, box.y0}, {box.x1, box.y1}, true);
    ++open_clips;
  }
  void operator()(const PopClip&) const {
    if (open_clips == 0) return;
    brush.list().PopClipRect();
    --open_clips;
  }
};

}  // namespace

void paint_label(const Brush& brush, const Label& mark) {
  if (mark.text.empty() || mark.color.a == 0) return;
  const FontCut& cut = brush.place().fonts->find(mark.face, mark.size);
  const char* begin = mark.text.data();
  const char* end = begin + mark.text.size();
  const float width = cut.font->CalcTextSizeA(cut.pixels, FLT_MAX, 0, begin, end).x;
  const Point baseline = baseline_of(mark, width / brush.scale(), cut.capital);
  const ImVec2 pixels = brush.at(baseline);
  const ImVec2 corner = {std::floor(pixels.x + 0.5F), std::floor(pixels.y + 0.5F) - cut.sink -
                                                          compat::ascent_of(cut.font, cut.pixels)};
  if (!brush.is_visible({corner.x, corner.y, corner.x + width, corner.y + cut.pixels})) return;
  brush.list().AddText(cut.font, cut.pixels, corner, pack_color(mark.color), begin, end);
}

void paint_pixels(const Brush& brush, const Pixels& mark) {
  const Box box = brush.on_pixels(mark.box);
  const int64_t cells = static_cast<int64_t>(mark.width) * mark.height;
  if (cells <= 0 || static_cast<int64_t>(mark.colors.size()) != cells || !(box.x1 > box.x0) ||
      !brush.is_visible(box)) {
    return;
  }
  if (brush.place().textures == nullptr || cells <= kMostCellsAsBoxes) {
    paint_cells(brush, mark, box);
    return;
  }
  brush.list().AddImage(compat::to_texture(brush.place().textures->show(mark)), {box.x0, box.y0},
                        {box.x1, box.y1});
}

void paint(const Drawing& drawing, const PaintPlace& place) {
  const Brush brush(place);
  int32_t open_clips = 0;
  for (const Mark& mark : drawing.marks) std::visit(PaintMark{brush, open_clips}, mark);
  // If a view does not close a clip, it must not hide what is painted after it.
  for (; open_clips > 0; --open_clips) place.list->PopClipRect();
}

}  // namespace cpscope::gui
