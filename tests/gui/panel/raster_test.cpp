#include "gui/panel/raster.h"

#include "gui/panel/imgui_compat.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::gui {
namespace {

constexpr uint64_t kWhiteId = 1, kCellsId = 2, kSmoothId = 3;
constexpr ImU32 kHalfWhite = IM_COL32(255, 255, 255, 128);

/// Triangles made without Dear ImGui, so that only the rasteriser is tested.
class Scene {
 public:
  Scene() : list_(nullptr) {}

  void vertex(float x, float y, ImU32 color = IM_COL32_WHITE, float u = 0.5F, float v = 0.5F) {
    ImDrawVert vertex;
    vertex.pos = ImVec2(x, y);
    vertex.uv = ImVec2(u, v);
    vertex.col = color;
    list_.VtxBuffer.push_back(vertex);
  }
  /// Indices count from the first vertex of `command`.
  void triangle(int a, int b, int c) {
    for (const int index : {a, b, c}) list_.IdxBuffer.push_back(static_cast<ImDrawIdx>(index));
  }
  void command(uint64_t texture = kWhiteId, ImVec4 clip = ImVec4(-1e6F, -1e6F, 1e6F, 1e6F)) {
    ImDrawCmd command;
    command.ClipRect = clip;
#if IMGUI_VERSION_NUM >= 19200
    command.TexRef = ImTextureRef(compat::to_texture(texture));
#else
    command.TextureId = compat::to_texture(texture);
#endif
    command.VtxOffset = static_cast<unsigned int>(first_vertex_);
    command.IdxOffset = static_cast<unsigned int>(first_index_);
    command.ElemCount = static_cast<unsigned int>(list_.IdxBuffer.Size - first_index_);
    list_.CmdBuffer.push_back(command);
    first_vertex_ = list_.VtxBuffer.Size;
    first_index_ = list_.IdxBuffer.Size;
  }
  void box(float x0, float y0, float x1, float y1, ImU32 color, bool is_twisted = false) {
    const int first = list_.VtxBuffer.Size - first_vertex_;
    vertex(x0, y0, color, 0, 0);
    vertex(x1, y0, color, 1, 0);
    vertex(x1, y1, color, 1, 1);
    vertex(x0, y1, color, 0, 1);
    triangle(first, first + 1, first + 2);
    // With the other vertex order, it is painted as two triangles.
    if (is_twisted) {
      triangle(first + 2, first + 3, first);
    } else {
      triangle(first, first + 2, first + 3);
    }
  }

  Image draw(int32_t width = 64, int32_t height = 64, Color background = {0, 0, 0}) {
    ImDrawData data;
    data.Valid = true;
    ImDrawList* lists[] = {&list_};
#if IMGUI_VERSION_NUM >= 18980
    data.CmdLists.push_back(lists[0]);
#else
    data.CmdLists = lists;
#endif
    data.CmdListsCount = 1;
    data.DisplaySize = ImVec2(static_cast<float>(width), static_cast<float>(height));
    data.FramebufferScale = ImVec2(1, 1);
    Image image(width, height, background);
    rasterise(
        data, [this](uint64_t id) { return texture_of(id); }, image);
    return image;
  }

  Image cells = Image(1, 1, {255, 255, 255});

 private:
  RasterTexture texture_of(uint64_t id) const {
    if (id == kWhiteId) return {&white_};
    if (id == kCellsId) return {&cells};
    if (id == kSmoothId) return {&cells, true};
    return {};
  }

  ImDrawList list_;
  Image white_ = Image(1, 1, {255, 255, 255});
  int first_vertex_ = 0, first_index_ = 0;
};

uint64_t hash_of(const Image& image) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const Color c : image.pixels) {
    for (const uint8_t byte : {c.r, c.g, c.b, c.a}) hash = (hash ^ byte) * 0x100000001B3;
  }
  return hash;
}

/// Triangles of all kinds: colour gradients, textures, slivers, vertices far away.
Scene make_busy_scene(float shift) {
  Scene scene;
  std::mt19937 random(7);
  const auto pick = [&](int32_t low, int32_t high) {
    return low + static_cast<int32_t>(random() % static_cast<uint32_t>(high - low));
  };
  scene.cells = Image(8, 8);
  for (Color& cell : scene.cells.pixels) {
    cell = {static_cast<uint8_t>(pick(0, 256)), static_cast<uint8_t>(pick(0, 256)),
            static_cast<uint8_t>(pick(0, 256)), static_cast<uint8_t>(pick(0, 256))};
  }
  for (const uint64_t texture : {kWhiteId, kCellsId, kSmoothId}) {
    for (int32_t i = 0; i < 60; ++i) {
      for (int32_t k = 0; k < 3; ++k) {
        // One random number per statement: the evaluation order of arguments is unspecified.
        const float x = static_cast<float>(pick(-400, 2000)) / 16 + (i == 5 ? shift : 0);
        const float y = static_cast<float>(pick(-400, 2000)) / 16;
        const float u = static_cast<float>(pick(0, 64)) / 64;
        const float v = static_cast<float>(pick(0, 64)) / 64;
        scene.vertex(x, y, static_cast<ImU32>(random()), u, v);
      }
      scene.triangle(3 * i, 3 * i + 1, 3 * i + 2);
    }
    scene.command(texture, ImVec4(3, 4, 90, 91));
  }
  return scene;
}

TEST(Raster, CoversEveryPixelOfAFanOnce) {
  std::mt19937 random(1);
  const auto place = [&] { return static_cast<float>(random() % 1024) / 16; };
  for (int32_t round = 0; round < 200; ++round) {
    // Triangles around a point that tile the square, with random vertices on the 1/16 grid.
    Scene scene;
    scene.vertex(place(), place(), kHalfWhite);
    std::vector<std::pair<float, float>> rim = {{0, 0},   {place(), 0},  {64, 0}, {64, place()},
                                                {64, 64}, {place(), 64}, {0, 64}, {0, place()}};
    for (const auto& [x, y] : rim) scene.vertex(x, y, kHalfWhite);
    for (int i = 0; i < 8; ++i) {
      // Both vertex orders.
      if (random() % 2 == 0) {
        scene.triangle(0, 1 + i, 1 + (i + 1) % 8);
      } else {
        scene.triangle(1 + (i + 1) % 8, 1 + i, 0);
      }
    }
    scene.command();
    const Image image = scene.draw();
    for (const Color pixel : image.pixels) ASSERT_EQ(pixel, (Color{128, 128, 128, 255})) << round;
  }
}

TEST(Raster, PaintsBoxesAsItPaintsTheirTriangles) {
  std::mt19937 random(2);
  for (int32_t round = 0; round < 200; ++round) {
    const auto place = [&] { return static_cast<float>(random() % 1280) / 16 - 8; };
    const float x0 = place(), y0 = place();
    const float x1 = x0 + static_cast<float>(random() % 512) / 16;
    const float y1 = y0 + static_cast<float>(random() % 512) / 16;
    Scene whole, twisted;
    whole.box(x0, y0, x1, y1, IM_COL32(200, 100, 50, 77));
    whole.command();
    twisted.box(x0, y0, x1, y1, IM_COL32(200, 100, 50, 77), true);
    twisted.command();
    ASSERT_TRUE(whole.draw() == twisted.draw()) << x0 << " " << y0 << " " << x1 << " " << y1;
  }
}

TEST(Raster, PutsThePixelUnderItsCentre) {
  Scene scene;
  scene.box(2.5F, 3, 4.5F, 4, IM_COL32(255, 0, 0, 255));
  scene.command();
  const Image image = scene.draw(8, 8);
  // Pixel centres at 2.5 (on the left edge: inside) and 3.5; 4.5 is on the right edge: outside.
  for (int32_t x = 0; x < 8; ++x) {
    EXPECT_EQ(image.at(x, 3).r, x == 2 || x == 3 ? 255 : 0) << x;
    EXPECT_EQ(image.at(x, 2).r, 0);
    EXPECT_EQ(image.at(x, 4).r, 0);
  }
}

TEST(Raster, MixesSourceOverTarget) {
  for (int32_t alpha = 0; alpha < 256; ++alpha) {
    Scene scene;
    scene.box(0, 0, 1, 1, IM_COL32(250, 10, 130, alpha));
    scene.command();
    const Color seen = scene.draw(1, 1, {20, 200, 130}).at(0, 0);
    const auto expected = [&](int32_t source, int32_t target) {
      return (2 * (source * alpha + target * (255 - alpha)) + 255) / 510;
    };
    EXPECT_EQ(seen.r, expected(250, 20)) << alpha;
    EXPECT_EQ(seen.g, expected(10, 200)) << alpha;
    EXPECT_EQ(seen.b, 130) << alpha;
    EXPECT_EQ(seen.a, 255) << alpha;
  }
}

TEST(Raster, KeepsInsideItsScissors) {
  Scene scene;
  scene.box(-100, -100, 200, 200, IM_COL32_WHITE);
  scene.command(kWhiteId, ImVec4(10, 20, 30, 25));
  const Image image = scene.draw();
  for (int32_t y = 0; y < 64; ++y) {
    for (int32_t x = 0; x < 64; ++x) {
      EXPECT_EQ(image.at(x, y).r, x >= 10 && x < 30 && y >= 20 && y < 25 ? 255 : 0);
    }
  }
}

TEST(Raster, ShowsCellsSharply) {
  Scene scene;
  scene.cells = Image(4, 2);
  for (size_t i = 0; i < 8; ++i) scene.cells.pixels[i] = {static_cast<uint8_t>(i * 30), 0, 0};
  scene.box(4, 4, 44, 24, IM_COL32_WHITE);
  scene.command(kCellsId);
  for (const bool is_twisted : {false, true}) {
    Scene other;
    other.cells = scene.cells;
    other.box(4, 4, 44, 24, IM_COL32_WHITE, is_twisted);
    other.command(kCellsId);
    const Image image = other.draw();
    for (int32_t y = 4; y < 24; ++y) {
      for (int32_t x = 4; x < 44; ++x) {
        ASSERT_EQ(image.at(x, y), scene.cells.at((x - 4) / 10, (y - 4) / 10)) << x << " " << y;
      }
    }
  }
}

TEST(Raster, GivesTexelsUnchangedWhereTheyMeetPixels) {
  Scene scene;
  scene.cells = Image(16, 16);
  std::mt19937 random(3);
  for (Color& cell : scene.cells.pixels) {
    cell = {static_cast<uint8_t>(random()), static_cast<uint8_t>(random()),
            static_cast<uint8_t>(random())};
  }
  scene.box(7, 9, 23, 25, IM_COL32_WHITE);
  scene.command(kSmoothId);
  const Image image = scene.draw();
  for (int32_t y = 0; y < 16; ++y) {
    for (int32_t x = 0; x < 16; ++x) {
      ASSERT_EQ(image.at(x + 7, y + 9), scene.cells.at(x, y)) << x << " " << y;
    }
  }
}

TEST(Raster, GrowsColoursEvenly) {
  Scene scene;
  scene.vertex(0, 0, IM_COL32(0, 0, 0, 255));
  scene.vertex(256, 0, IM_COL32(255, 0, 0, 255));
  scene.vertex(256, 8, IM_COL32(255, 0, 0, 255));
  scene.vertex(0, 8, IM_COL32(0, 0, 0, 255));
  scene.triangle(0, 1, 2);
  scene.triangle(0, 2, 3);
  scene.command();
  const Image image = scene.draw(256, 8);
  for (int32_t y = 0; y < 8; ++y) {
    for (int32_t x = 0; x < 256; ++x) {
      EXPECT_NEAR(image.at(x, y).r, (x + 0.5) * 255 / 256, 1) << x << " " << y;
    }
  }
}

TEST(Raster, PaintsNothingForWhatIsNoPlace) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinite = std::numeric_limits<float>::infinity();
  Scene scene;
  for (const float bad : {nan, infinite, -infinite}) {
    scene.vertex(bad, 0);
    scene.vertex(64, 0);
    scene.vertex(64, 64);
  }
  for (int i = 0; i < 3; ++i) scene.triangle(3 * i, 3 * i + 1, 3 * i + 2);
  scene.command();
  scene.box(0, 0, 64, 64, IM_COL32_WHITE);
  scene.command(99);  // a texture with an unknown id
  EXPECT_TRUE(scene.draw() == Image(64, 64, {0, 0, 0}));
}

TEST(Raster, TakesCornersThatAreFarAway) {
  Scene scene;
  scene.box(-1e30F, -1e30F, 1e30F, 1e30F, IM_COL32_WHITE);
  scene.vertex(-3e8F, -3e8F);
  scene.vertex(3e8F, -3e8F + 1);
  scene.vertex(0, 3e8F);
  scene.triangle(4, 5, 6);
  scene.command();
  EXPECT_TRUE(scene.draw() == Image(64, 64, {255, 255, 255}));
}

TEST(Raster, GivesTheSamePixelsWithEveryCompiler) {
  // The hash was checked with GCC 12 (-O0, -O2, -O3 -march=native) and Clang 14 (-O0, -O2).
  EXPECT_EQ(hash_of(make_busy_scene(0).draw(100, 100)), 5553215674528717414ULL);
}

TEST(Raster, GivesTheSamePixelsTwiceAndOthersAfterAChange) {
  EXPECT_TRUE(make_busy_scene(0).draw(100, 100) == make_busy_scene(0).draw(100, 100));
  EXPECT_FALSE(make_busy_scene(0).draw(100, 100) == make_busy_scene(0.5F).draw(100, 100));
}

}  // namespace
}  // namespace cpscope::gui
