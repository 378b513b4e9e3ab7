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

/// packages: Inter and JetBrains Mono where they are installed. built_in: the one font that Dear
/// ImGui carries in itself, so that pictures depend on nothing else (golden pictures).
enum class FontChoice : uint8_t { packages, built_in };

/// Where fonts are looked for. A file that is missing or no font is replaced by the built-in font.
struct FontFiles {
  std::string body = "/usr/share/fonts/opentype/inter/Inter-Regular.otf";
  std::string strong = "/usr/share/fonts/opentype/inter/Inter-SemiBold.otf";
  std::string mono = "/usr/share/fonts/truetype/jetbrains-mono/JetBrainsMono-Regular.ttf";
};

/// One face in one size.
struct FontCut {
  Face face = Face::body;
  float size = 0;          // logical pixels of the em, what Label::size asks for
  ImFont* font = nullptr;  // of the atlas
  float pixels = 0;        // Dear ImGui's name for the size: ascent + descent on the screen
  float capital = 0.73F;   // height of capitals, of the em
  float sink = 0;          // screen pixels by which its letters stand below their baseline
};

/// Where a hatch lies in the atlas: a square of `side` pixels that repeats without a seam.
struct HatchTile {
  float u0 = 0, v0 = 0, u1 = 0, v1 = 0;  // texture coordinates of the square
  int32_t side = 0;                      // pixels; 0: none, hatches are drawn as lines
};

/// The fonts of one atlas, for one scale. It and the atlas point into each other and live equally
/// long.
struct Fonts {
  FontChoice used = FontChoice::packages;  // built_in as soon as one file was missing
  std::string missing;                     // a sentence with the package to install, or empty
  float scale = 1;                         // screen pixels of a logical pixel
  std::vector<FontCut> cuts;               // by face, then size
  std::array<HatchTile, 4> hatches;        // by Hatch
  std::vector<std::shared_ptr<std::string>> files;  // what the atlas points at

  /// The loaded cut nearest to a size; between two, the smaller one.
  const FontCut& find(Face face, float size) const;
  /// Width of one line in logical pixels, at the size that `find` gives.
  float text_width(const std::string& text, float size, Face face) const;
};

/// Fills an empty atlas and packs it: fonts, and the hatches beside them.
Fonts load_fonts(ImFontAtlas& atlas, FontChoice choice, float scale = 1,
                 const FontFiles& files = {});

/// For views. `fonts` must outlive it.
TextWidth text_width_of(const Fonts& fonts);

}  // namespace cpscope::gui
