#include "gui/panel/hatch.h"

#include "gui/panel/imgui_compat.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace cpscope::gui {

namespace {

constexpr float kPeriod = 8;        // logical pixels
constexpr int32_t kMostSide = 128;  // pixels
constexpr int32_t kSamples = 4;     // samples per pixel, in each direction

int32_t wrap(int32_t value, int32_t period) { return ((value % period) + period) % period; }

/// True if the hatch covers the point (in quarter pixels, repeating every `period`).
bool is_inked(Hatch hatch, int32_t x, int32_t y, int32_t period) {
  // A sixth of the period, measured along an axis, gives lines of 1 pixel at scale 1.
  const int32_t width = std::max<int32_t>(1, (period + 3) / 6);
  const bool rises = wrap(x + y, period) < width;
  switch (hatch) {
    case Hatch::none:
      return false;
    case Hatch::diagonal:
      return rises;
    case Hatch::cross:
      return rises || wrap(x - y, period) < width;
    case Hatch::dots: {
      // Two dots per square, the second one in its middle.
      const int32_t radius = period / 7;
      for (const int32_t center : {period / 4, period * 3 / 4}) {
        const int32_t dx = wrap(x, period) * 2 + 1 - center * 2;
        const int32_t dy = wrap(y, period) * 2 + 1 - center * 2;
        if (dx * dx + dy * dy <= 4 * radius * radius) return true;
      }
      return false;
    }
  }
  return false;
}

}  // namespace

std::vector<uint8_t> draw_hatch(Hatch hatch, int32_t period, int32_t side) {
  std::vector<uint8_t> coverage;
  coverage.reserve(static_cast<size_t>(side) * static_cast<size_t>(side));
  for (int32_t y = 0; y < side; ++y) {
    for (int32_t x = 0; x < side; ++x) {
      int32_t inked = 0;
      for (int32_t v = 0; v < kSamples; ++v) {
        for (int32_t u = 0; u < kSamples; ++u) {
          inked += is_inked(hatch, x * kSamples + u, y * kSamples + v, period * kSamples) ? 1 : 0;
        }
      }
      coverage.push_back(static_cast<uint8_t>(inked * 255 / (kSamples * kSamples)));
    }
  }
  return coverage;
}

void bake_hatches(ImFontAtlas& atlas, float scale, std::array<HatchTile, 4>& tiles) {
  if constexpr (!compat::kAtlasTakesPictures) {
    atlas.Build();
    return;
  }
#if IMGUI_VERSION_NUM < 19200
  const int32_t period = std::max<int32_t>(4, static_cast<int32_t>(std::lround(kPeriod * scale)));
  const int32_t side = period * std::max<int32_t>(1, kMostSide / period);
  std::array<int, 4> rects{};
  for (size_t i = 1; i < tiles.size(); ++i) rects[i] = atlas.AddCustomRectRegular(side, side);
  atlas.Build();
  unsigned char* pixels = nullptr;
  int width = 0, height = 0;
  atlas.GetTexDataAsAlpha8(&pixels, &width, &height);
  for (size_t i = 1; i < tiles.size(); ++i) {
    const ImFontAtlasCustomRect* rect = atlas.GetCustomRectByIndex(rects[i]);
    const std::vector<uint8_t> tile = draw_hatch(static_cast<Hatch>(i), period, side);
    for (int32_t y = 0; y < side; ++y) {
      std::copy_n(tile.begin() + static_cast<ptrdiff_t>(y) * side, side,
                  pixels + static_cast<ptrdiff_t>(rect->Y + y) * width + rect->X);
    }
    const auto u = [width](int x) { return static_cast<float>(x) / static_cast<float>(width); };
    const auto v = [height](int y) { return static_cast<float>(y) / static_cast<float>(height); };
    tiles[i] = {u(rect->X), v(rect->Y), u(rect->X + side), v(rect->Y + side), side};
  }
#endif
}

}  // namespace cpscope::gui
