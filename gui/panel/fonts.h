#pragma once

#include "gui/draw/drawing.h"
#include "gui/model/view.h"

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

struct ImFont;
struct ImFontAtlas;

namespace cpscope::gui {

/// packages: Inter and JetBrains Mono if they are installed. built_in: the font that is part of
/// Dear ImGui, so that pictures depend on nothing else (golden pictures).
enum class FontChoice : uint8_t { packages, built_in };

/// Paths of the fonts. A missing or invalid file is replaced by the built-in font.
struct FontFiles {
  std::string body = "/usr/share/fonts/opentype/inter/Inter-Regular.otf";
  std::string strong = "/usr/share/fonts/opentype/inter/Inter-SemiBold.otf";
  std::string mono = "/usr/share/fonts/truetype/jetbrains-mono/JetBrainsMono-Regular.ttf";
};

/// One face in one size.
struct FontCut {
  Face face = Face::body;
  float size = 0;          // em in logical pixels, to compare with Label::size
  ImFont* font = nullptr;  // owned by the atlas
  float pixels = 0;        // Dear ImGui's font size: ascent + descent in screen pixels
  float capital = 0.73F;   // height of capitals, in units of the em
  float sink = 0;          // screen pixels by which letters are drawn below their baseline
};

/// Position of a hatch in the atlas: a square of `side` pixels that can be tiled without a seam.
struct HatchTile {
  float u0 = 0, v0 = 0, u1 = 0, v1 = 0;  // texture coordinates of the square
  int32_t side = 0;                      // pixels; 0: not in the atlas, the hatch is drawn as lines
};

/// The fonts of one atlas, for one scale. It and the atlas point into each other and have the same
/// lifetime.
struct Fonts {
  FontChoice used = FontChoice::packages;  // built_in if at least one file was missing
  std::string missing;                     // a sentence with the package to install, or empty
  float scale = 1;                         // screen pixels per logical pixel
  std::vector<FontCut> cuts;               // ordered by face, then size
  std::array<HatchTile, 4> hatches;        // indexed by Hatch
  std::vector<std::shared_ptr<std::string>> files;  // file contents that the atlas points at

  /// The loaded font nearest to a size; of two equally near ones, the smaller.
  const FontCut& find(Face face, float size) const;
  /// Width of one line in logical pixels, at the size that `find` gives.
  float text_width(const std::string& text, float size, Face face) const;
};

/// Fills an empty atlas with fonts and hatches, and packs it.
Fonts load_fonts(ImFontAtlas& atlas, FontChoice choice, float scale = 1,
                 const FontFiles& files = {});

/// Measures text for views. `fonts` must outlive the result.
TextWidth text_width_of(const Fonts& fonts);

}  // namespace cpscope::gui
