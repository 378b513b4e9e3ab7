#pragma once

#include "gui/draw/image.h"

#include <cstdint>
#include <functional>

struct ImDrawData;

namespace cpscope::gui {

/// A texture as the rasteriser reads it.
struct RasterTexture {
  const Image* image = nullptr;
  bool is_smooth = false;    // between texels: fonts; otherwise the nearest one: cells
  bool is_coverage = false;  // white everywhere, only alpha differs: faster
};

/// The texture of an id, image = null for an unknown one (nothing is then painted with it).
using FindTexture = std::function<RasterTexture(uint64_t id)>;

/// Paints over `target` what Dear ImGui wants drawn, as a graphics card would: top-left rule,
/// scissors, colours and textures interpolated, source over target. Corners are rounded to 1/16
/// pixel, everything after that is arithmetic in integers: the same pixels with every compiler and
/// optimisation. Corners further out than 2^15 pixels are pulled in; NaN paints nothing.
void rasterise(const ImDrawData& data, const FindTexture& find_texture, Image& target);

}  // namespace cpscope::gui
