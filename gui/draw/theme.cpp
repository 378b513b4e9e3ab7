#include "gui/draw/theme.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

namespace cpscope::gui {

namespace {

constexpr Color color_of(uint32_t rgb) {
  return {static_cast<uint8_t>(rgb >> 16), static_cast<uint8_t>(rgb >> 8 & 255),
          static_cast<uint8_t>(rgb & 255)};
}

struct RoleColors {
  Role role;
  uint32_t dark, light, print;
};

// Print is the light theme on white paper, with no dark fill colours.
constexpr RoleColors kRoleColors[] = {
    {Role::background, 0x16181D, 0xFAFAF7, 0xFFFFFF},
    {Role::panel, 0x1C1F26, 0xFFFFFF, 0xFFFFFF},
    {Role::raised, 0x2A2E37, 0xECEDEA, 0xF1F2F2},
    {Role::border, 0x363B46, 0xD3D5D6, 0xC9CCCE},
    {Role::grid, 0x333842, 0xDCDEDF, 0xD9DBDC},
    {Role::text, 0xE8EAEE, 0x1B1E24, 0x000000},
    {Role::faint_text, 0x9DA5B4, 0x5A6170, 0x4D535E},
    {Role::accent, 0x6CB6FF, 0x0B5CAD, 0x0B5CAD},
    {Role::compute, 0x0077BB, 0x0072B2, 0x5AA9DC},
    {Role::transfer, 0xF0E442, 0x999933, 0xA8A84A},
    {Role::merge, 0x99DDFF, 0x332288, 0x5544AA},
    {Role::wait, 0x4A5059, 0xC4C7CC, 0xD5D8DC},
    {Role::error, 0xD55E00, 0xBB5566, 0xC25A6A},
    {Role::mask_full, 0x56B4E9, 0x0072B2, 0x6DB3E0},
    {Role::mask_partial, 0xF0E442, 0xE69F00, 0xF5CF7A},
    {Role::mask_empty, 0x2A2E35, 0xE6E6E2, 0xF4F4F1},
    {Role::padding, 0x6B717C, 0xB4B8BE, 0xC3C6CB},
    {Role::query, 0xA9C7FF, 0x3A6FB0, 0x3A6FB0},
    {Role::key, 0xD0954A, 0x9A6412, 0x9A6412},
    {Role::selected, 0xFFFFFF, 0x000000, 0x000000},
    {Role::hovered, 0xFFFFFF, 0x000000, 0x000000},
    {Role::related, 0xFF9EDB, 0x9C1F6E, 0x9C1F6E},
};
static_assert(std::size(kRoleColors) == kRoleCount);

// Cividis, ten of its colours at equal distances. Source: Nunez, Anderton, Renslow 2018,
// "Optimizing colormaps with consideration for color vision deficiency", PLOS ONE 13(7): e0199239.
constexpr std::array<Color, 10> kCividis = {
    color_of(0x00224E), color_of(0x123570), color_of(0x3B496C), color_of(0x575D6D),
    color_of(0x707173), color_of(0x8A8678), color_of(0xA59C74), color_of(0xC3B369),
    color_of(0xE1CC55), color_of(0xFEE838)};

uint8_t mix_channel(uint8_t from, uint8_t to, double share) {
  return static_cast<uint8_t>(std::lround(from + (to - from) * share));
}

Color mix(Color from, Color to, double share) {
  return {mix_channel(from.r, to.r, share), mix_channel(from.g, to.g, share),
          mix_channel(from.b, to.b, share)};
}

/// The colour at `share` of [0, 1] between equally spaced anchor colours.
template <size_t N>
Color on_ramp(const std::array<Color, N>& anchors, double share) {
  const double place = std::clamp(share, 0.0, 1.0) * (N - 1);
  const size_t below = std::min<size_t>(static_cast<size_t>(place), N - 2);
  return mix(anchors[below], anchors[below + 1], place - static_cast<double>(below));
}

/// Relative luminance as defined by WCAG 2.1.
double luminance(Color color) {
  const auto linear = [](uint8_t channel) {
    const double value = channel / 255.0;
    return value <= 0.04045 ? value / 12.92 : std::pow((value + 0.055) / 1.055, 2.4);
  };
  return 0.2126 * linear(color.r) + 0.7152 * linear(color.g) + 0.0722 * linear(color.b);
}

Theme make_theme(ThemeName name) {
  Theme theme{.name = name};
  for (const RoleColors& row : kRoleColors) {
    const uint32_t rgb = name == ThemeName::dark    ? row.dark
                         : name == ThemeName::light ? row.light
                                                    : row.print;
    theme.colors[static_cast<size_t>(row.role)] = color_of(rgb);
  }
  return theme;
}

constexpr std::array<std::string_view, kThemeNames.size()> kNames = {"dark", "light", "print"};

}  // namespace

Color Theme::of_quantity(double share) const {
  if (std::isnan(share)) return of(Role::error);
  return on_ramp(kCividis, is_dark() ? share : 1.0 - share);
}

Color Theme::of_signed(double share) const {
  if (std::isnan(share)) return of(Role::error);
  // Zero, in the middle, is close to the background colour: dark on dark, white on white.
  static constexpr std::array<Color, 5> kOnDark = {color_of(0x7CC4FF), color_of(0x2B78B8),
                                                   color_of(0x2E323A), color_of(0xB8661A),
                                                   color_of(0xFFB454)};
  static constexpr std::array<Color, 5> kOnLight = {color_of(0x0B4F8A), color_of(0x6FB1DE),
                                                    color_of(0xFFFFFF), color_of(0xF0A860),
                                                    color_of(0xA34A00)};
  return on_ramp(is_dark() ? kOnDark : kOnLight, (share + 1.0) / 2.0);
}

Color Theme::of_rank(int32_t rank, int32_t num_ranks) const {
  const double share = num_ranks > 1 ? static_cast<double>(rank) / (num_ranks - 1) : 0.5;
  static constexpr std::array<Color, 3> kOnDark = {color_of(0x0B3F66), color_of(0x1F86C9),
                                                   color_of(0xB5DFFF)};
  static constexpr std::array<Color, 3> kOnLight = {color_of(0xBFDCF2), color_of(0x5AA5D8),
                                                    color_of(0x0A4A7A)};
  static constexpr std::array<Color, 3> kOnPaper = {color_of(0xCFE3F4), color_of(0x96C5E8),
                                                    color_of(0x4F9BD0)};
  return on_ramp(is_dark() ? kOnDark : name == ThemeName::light ? kOnLight : kOnPaper, share);
}

Color Theme::text_on(Color background) const {
  // Contrast with white is 1.05 / (L + 0.05), with black (L + 0.05) / 0.05.
  const double level = luminance(background) + 0.05;
  return level * level > 1.05 * 0.05 ? Color{0, 0, 0} : Color{255, 255, 255};
}

const Theme& theme_of(ThemeName name) {
  static const std::array<Theme, kThemeNames.size()> kThemes = {
      make_theme(ThemeName::dark), make_theme(ThemeName::light), make_theme(ThemeName::print)};
  return kThemes[static_cast<size_t>(name)];
}

std::string_view to_name(ThemeName name) { return kNames[static_cast<size_t>(name)]; }

std::optional<ThemeName> parse_theme(std::string_view name) {
  for (const ThemeName candidate : kThemeNames) {
    if (to_name(candidate) == name) return candidate;
  }
  return std::nullopt;
}

}  // namespace cpscope::gui
