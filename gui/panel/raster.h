#pragma once

#include "gui/draw/image.h"

#include <cstdint>
#include <functional>

struct ImDrawData;

namespace cpscope::gui {

/// A texture in the form that the rasteriser reads.
struct RasterTexture {
  const Image* image = nullptr;
  bool is_smooth = false;    // true: bilinear, for fonts; false: nearest texel, for cells
  bool is_coverage = false;  // white everywhere, only alpha varies: faster
};

/// Returns the texture of an id; image = null for an unknown one (then nothing is painted with it).
using FindTexture = std::function<RasterTexture(uint64_t id)>;

/// Paints the draw data of Dear ImGui over `target` as a GPU would: top-left rule, scissors,
/// interpolated colours and textures, source over target. Vertices are rounded to 1/16 pixel, and
/// everything after that is integer arithmetic: the same pixels with every compiler and
/// optimisation level. Vertices beyond 2^15 pixels are clamped; NaN paints nothing.
void rasterise(const ImDrawData& data, const FindTexture& find_texture, Image& target);

}  // namespace cpscope::gui
