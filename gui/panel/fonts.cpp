#include "gui/panel/fonts.h"

#include "gui/panel/hatch.h"
#include "gui/panel/imgui_compat.h"
#include "sim/base/check.h"

#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cpscope::gui {

namespace {

constexpr std::array kBodySizes = {10.F, 11.F, 12.F, 13.F, 14.F, 15.F, 16.F, 18.F, 20.F, 24.F};
constexpr std::array kStrongSizes = {11.F, 12.F, 13.F, 14.F, 15.F, 16.F, 18.F, 20.F, 24.F, 32.F};
constexpr std::array kMonoSizes = {9.F, 10.F, 11.F, 12.F, 13.F, 14.F, 15.F, 16.F, 18.F};

// Capitals of the built-in font are 8 of 13 pixels high, and are drawn one pixel too low.
constexpr float kBuiltInCapital = 8.F / 13;

constexpr ImWchar kAscii[] = {0x20, 0x7E, 0};

/// A font file in memory, and the sum of ascent and descent in units of its em.
struct FontData {
  std::string bytes;
  float line_of_em = 1;
};

uint32_t read_number(const std::string& bytes, size_t at, size_t count) {
  if (at + count > bytes.size()) return 0;
  uint32_t value = 0;
  for (size_t i = 0; i < count; ++i) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

/// Offset of a table of an OpenType file; 0 when the file does not have it.
size_t find_table(const std::string& bytes, const char* name) {
  const size_t tables = read_number(bytes, 4, 2);
  for (size_t i = 0; i < tables; ++i) {
    const size_t row = 12 + i * 16;
    if (row + 16 > bytes.size()) return 0;
    if (bytes.compare(row, 4, name) == 0) return read_number(bytes, row + 8, 4);
  }
  return 0;
}

/// Reads the file if it is an OpenType font with plausible measures.
std::optional<FontData> read_font(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return std::nullopt;
  FontData font;
  font.bytes.assign(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
  const size_t head = find_table(font.bytes, "head");
  const size_t hhea = find_table(font.bytes, "hhea");
  if (head == 0 || hhea == 0) return std::nullopt;
  const auto units = static_cast<float>(read_number(font.bytes, head + 18, 2));
  const auto ascent =
      static_cast<float>(static_cast<int16_t>(read_number(font.bytes, hhea + 4, 2)));
  const auto descent =
      static_cast<float>(static_cast<int16_t>(read_number(font.bytes, hhea + 6, 2)));
  if (units < 16 || ascent <= 0 || descent > 0) return std::nullopt;
  font.line_of_em = (ascent - descent) / units;
  if (font.line_of_em < 0.5F || font.line_of_em > 3) return std::nullopt;
  return font;
}

/// Adds one face in all sizes. `fonts` owns the file; the atlas only points at it.
template <size_t N>
void add_face(ImFontAtlas& atlas, Fonts& fonts, Face face, FontData data,
              const std::array<float, N>& sizes) {
  fonts.files.push_back(std::make_shared<std::string>(std::move(data.bytes)));
  std::string& bytes = *fonts.files.back();
  for (const float size : sizes) {
    ImFontConfig config;
    config.GlyphRanges = kAscii;
    // Letters keep fractional advances; figures of fixed width are placed on whole pixels.
    config.OversampleH = face == Face::mono ? 1 : 2;
    config.OversampleV = 1;
    config.PixelSnapH = face == Face::mono;
    const float pixels = std::round(size * fonts.scale * data.line_of_em * 4) / 4;
    config.FontDataOwnedByAtlas = false;
    ImFont* font =
        atlas.AddFontFromMemoryTTF(bytes.data(), static_cast<int>(bytes.size()), pixels, &config);
    fonts.cuts.push_back({.face = face, .size = size, .font = font, .pixels = pixels});
  }
}

void add_built_in(ImFontAtlas& atlas, Fonts& fonts) {
  // The font is a bitmap of 13 pixels: only integer multiples of it are sharp.
  const float unit = 13.F * std::max(1.F, std::round(fonts.scale));
  for (const float times : {1.F, 2.F}) {
    ImFontConfig config;
    config.SizePixels = unit * times;
    config.OversampleH = config.OversampleV = 1;
    config.PixelSnapH = true;
    ImFont* font = atlas.AddFontDefault(&config);
    for (const Face face : {Face::body, Face::mono, Face::strong}) {
      fonts.cuts.push_back(
          {face, 13.F * times, font, config.SizePixels, kBuiltInCapital, unit * times / 13});
    }
  }
  std::stable_sort(fonts.cuts.begin(), fonts.cuts.end(),
                   [](const FontCut& a, const FontCut& b) { return a.face < b.face; });
}

bool add_packages(ImFontAtlas& atlas, Fonts& fonts, const FontFiles& files) {
  std::optional<FontData> body = read_font(files.body);
  std::optional<FontData> mono = read_font(files.mono);
  std::optional<FontData> strong = read_font(files.strong);
  if (!body || !strong) fonts.missing += "Inter is not installed (package fonts-inter). ";
  if (!mono) fonts.missing += "JetBrains Mono is not installed (package fonts-jetbrains-mono). ";
  if (!fonts.missing.empty()) {
    fonts.missing += "A plain font is used instead";
    return false;
  }
  add_face(atlas, fonts, Face::body, std::move(*body), kBodySizes);
  add_face(atlas, fonts, Face::mono, std::move(*mono), kMonoSizes);
  add_face(atlas, fonts, Face::strong, std::move(*strong), kStrongSizes);
  return true;
}

}  // namespace

const FontCut& Fonts::find(Face face, float size) const {
  const FontCut* best = nullptr;
  for (const FontCut& cut : cuts) {
    if (cut.face != face) continue;
    if (best == nullptr || std::abs(cut.size - size) < std::abs(best->size - size)) best = &cut;
  }
  CPSCOPE_CHECK(best != nullptr, "a face without a font", static_cast<int>(face), size);
  return *best;
}

float Fonts::text_width(const std::string& text, float size, Face face) const {
  const FontCut& cut = find(face, size);
  return cut.font->CalcTextSizeA(cut.pixels, FLT_MAX, 0, text.data(), text.data() + text.size()).x /
         scale;
}

Fonts load_fonts(ImFontAtlas& atlas, FontChoice choice, float scale, const FontFiles& files) {
  Fonts fonts{
      .used = choice, .missing = "", .scale = scale, .cuts = {}, .hatches = {}, .files = {}};
  atlas.Flags |= ImFontAtlasFlags_NoPowerOfTwoHeight;
  if (choice == FontChoice::built_in || !add_packages(atlas, fonts, files)) {
    fonts.used = FontChoice::built_in;
    add_built_in(atlas, fonts);
  }
  bake_hatches(atlas, scale, fonts.hatches);
  return fonts;
}

TextWidth text_width_of(const Fonts& fonts) {
  return [&fonts](const std::string& text, float size, Face face) {
    return fonts.text_width(text, size, face);
  };
}

}  // namespace cpscope::gui
