#pragma once

#include "gui/draw/drawing.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace cpscope::gui {

enum class ThemeName : uint8_t { dark, light, print };
inline constexpr std::array kThemeNames = {ThemeName::dark, ThemeName::light, ThemeName::print};

/// The meaning of a colour. Pictures use roles, never colours.
enum class Role : uint8_t {
  background,    // background of the window and of pictures
  panel,         // background of a panel
  raised,        // buttons, headers, bars behind values
  border,        // lines between panels
  grid,          // ruler lines and ticks
  text,          //
  faint_text,    // units, subtitles; still 4.5:1 on panel
  accent,        // clickable items, the playhead
  compute,       // arithmetic: solid
  transfer,      // rank to rank: diagonal hatch, arrows
  merge,         // merge, reorder, finish: thin, dotted
  wait,          // a rank without work: outline only
  error,         // over budget, failed: cross hatch and "!"
  mask_full,     // all pairs of a tile visible
  mask_partial,  // some pairs visible: diagonal hatch
  mask_empty,    // no pair visible
  padding,       // slots without a token: dots
  query,         // rows of Q, dQ, O
  key,           // rows of K, V, dK, dV
  selected,      // outline, 2 pixels
  hovered,       // outline, 1 pixel
  related        // outline of everything related to the selection
};
inline constexpr size_t kRoleCount = static_cast<size_t>(Role::related) + 1;

/// Colours of all roles. Roles that appear next to each other have a CIEDE2000 distance of at least
/// 15 for normal, protan, deutan and tritan vision (tests/gui/draw/theme_test.cpp).
struct Theme {
  ThemeName name = ThemeName::dark;
  std::array<Color, kRoleCount> colors{};

  Color of(Role role) const { return colors[static_cast<size_t>(role)]; }
  bool is_dark() const { return name == ThemeName::dark; }
  /// A quantity in [0, 1] on the cividis scale; 0 is the end close to the background. NaN is the
  /// error colour.
  Color of_quantity(double share) const;
  /// A signed quantity in [-1, 1], 0 in the middle: blue to orange.
  Color of_signed(double share) const;
  /// Ranks as a lightness ramp of the compute hue. A hint, never the only channel.
  Color of_rank(int32_t rank, int32_t num_ranks) const;
  /// Black or white, whichever has the higher contrast on the background.
  Color text_on(Color background) const;
};

const Theme& theme_of(ThemeName name);
std::string_view to_name(ThemeName name);
std::optional<ThemeName> parse_theme(std::string_view name);

}  // namespace cpscope::gui
