#pragma once

#include "gui/panel/fonts.h"

#include <array>
#include <cstdint>
#include <vector>

struct ImFontAtlas;

namespace cpscope::gui {

/// Coverage (0 to 255) of one hatch on a square of side x side pixels, [row][column]. `period` is
/// the repeat distance in pixels and divides `side`. Gives the same pixels with every compiler.
std::vector<uint8_t> draw_hatch(Hatch hatch, int32_t period, int32_t side);

/// Packs the atlas, including the hatches where the version of Dear ImGui supports it. A hatched
/// box then needs only a few vertices and no change of texture.
void bake_hatches(ImFontAtlas& atlas, float scale, std::array<HatchTile, 4>& tiles);

}  // namespace cpscope::gui
