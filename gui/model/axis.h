#pragma once

#include "gui/draw/drawing.h"
#include "gui/draw/theme.h"
#include "gui/model/view.h"

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cpscope::gui {

/// The value of "Ki" after a number of tokens.
inline constexpr int64_t kKi = 1024;

/// "131 072", "-4 096".
std::string print_count(int64_t count);
/// The next blank at or after `from` where a line may break, which is not inside "131 072"; npos if
/// there is none.
size_t find_line_break(std::string_view text, size_t from = 0);
/// "[0, 1 024)".
std::string print_range(int64_t begin, int64_t end);
/// "0", "640", "4 Ki", "128 Ki", "1 Mi", "1.5 Mi" if that is exact, otherwise as print_count.
std::string print_short_count(int64_t count);
/// "0 B", "640 B", "1.5 KiB", "512 MiB": at most three figures and a half.
std::string print_bytes(double bytes);
std::string print_bytes(std::integral auto bytes) {
  return print_bytes(static_cast<double>(bytes));
}
/// "850 ns", "12.5 us", "3.2 ms", "1.25 s".
std::string print_duration(double nanoseconds);
/// "1 px = 552 tokens", or "1 token = 12 px" where a token is wider. `unit` is the singular.
std::string print_scale(double units_per_pixel, std::string_view unit);
/// "12.5 %", "<0.1 %".
std::string print_share(double share);
/// The same of a part of a whole that is not 0.
std::string print_share(int64_t part, int64_t whole);

/// Makes a span drawable: finite, ascending, at least 1e-9 of the whole wide, and overlapping the
/// whole.
AxisSpan sane_span(AxisSpan span);

/// A linear scale from [0, total) units to pixels; `span` is shown between begin and end. Pixels
/// may descend.
class Axis {
 public:
  Axis(double total, AxisSpan span, float begin, float end);

  double total() const { return total_; }
  float begin() const { return begin_; }
  float end() const { return end_; }
  /// The shown units [lo, hi); they may extend beyond [0, total].
  double lo() const { return lo_; }
  double hi() const { return hi_; }
  double units_per_pixel() const;
  double pixels_per_unit() const;
  /// Clamped to at most 100 000 pixels outside of the shown range.
  float pixel_of(double value) const;
  double value_at(float pixel) const;
  /// The shown part of [first, last), in units; empty (first >= last) when none is shown.
  std::pair<double, double> shown(double first, double last) const;

 private:
  double total_, lo_, hi_;
  float begin_, end_;
};

/// The unit of the numbers on an axis.
enum class AxisUnit : uint8_t {
  tokens,      // power-of-two steps where the total suggests them: 0, 128 Ki, 256 Ki
  count,       // whole 1-2-5 steps: 0, 20, 40
  nanoseconds  // 1-2-5 steps: 0 ns, 20 us, 40 us
};

struct Tick {
  double value = 0;
  float pixel = 0;
  std::string text;
};

/// Round numbers inside the shown range, at least `least_pixels` apart, ascending.
std::vector<Tick> make_ticks(const Axis& axis, AxisUnit unit, float least_pixels);

/// The style of a ruler. Its box is next to the picture; the ticks are on the edge at the picture.
struct RulerStyle {
  AxisUnit unit = AxisUnit::tokens;
  bool is_vertical = false;  // numbers left of the picture; otherwise above or below it
  bool is_below = false;     // a horizontal ruler under the picture
  float text_size = 11;
  std::string prefix = {};  // printed before every number: "~" for a simulated clock
};

/// Adds ticks and numbers in the box. Numbers never overlap and stay inside the box's ends.
void add_ruler(Drawing& drawing, const ViewInput& input, const Axis& axis, const Box& box,
               const RulerStyle& style);

/// The first of the texts that fits; if none fits, the last one cut to the width.
std::string first_that_fits(const TextWidth& width, std::initializer_list<std::string> texts,
                            float size, Face face, float room);

/// The text, cut off with ".." if it does not fit; empty when there is too little room for that.
std::string fit_text(const TextWidth& width, const std::string& text, float size, Face face,
                     float room);

}  // namespace cpscope::gui
