#include "gui/model/axis.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

constexpr int64_t kMi = kKi * 1024;
constexpr double kFarthestPixel = 100'000;
constexpr double kNarrowestSpan = 1e-9;
constexpr float kTickLength = 5;
constexpr float kNumberGap = 8;  // pixels between two numbers of a ruler

/// Prints three significant figures: 1.25, 12.5, 125; without trailing zeros.
std::string print_three_figures(double value) {
  const double size = std::abs(value);
  std::string text = fmt::format("{:.{}f}", value, size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
  if (text.find('.') != std::string::npos) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
  }
  return text;
}

/// True if readers expect powers of two on an axis with this many tokens.
bool counts_in_powers_of_two(double total) {
  const auto tokens = static_cast<int64_t>(total);
  return tokens >= 8 * kKi || (tokens >= 64 && tokens % 64 == 0);
}

double power_of_two_step(double least) {
  return std::exp2(std::ceil(std::log2(std::max(least, 1.0)) - 1e-9));
}

double one_two_five_step(double least) {
  const double decade = std::pow(10.0, std::floor(std::log10(least) + 1e-9));
  for (const double factor : {1.0, 2.0, 5.0})
    if (decade * factor >= least * (1 - 1e-9)) return decade * factor;
  return decade * 10;
}

/// Like print_short_count, but with one unit for all numbers of a ruler, chosen by its step.
std::string print_token_tick(int64_t value, int64_t step) {
  if (value == 0) return "0";
  if (value % kMi == 0) return fmt::format("{} Mi", print_count(value / kMi));
  if (step % kKi == 0) return fmt::format("{} Ki", print_count(value / kKi));
  return print_count(value);
}

/// Prints the times of a ruler in the unit of the last one, with the decimals that its step needs.
std::string print_time_tick(double value, double step, double last) {
  double unit = 1;
  const char* name = "ns";
  for (const char* larger : {"us", "ms", "s"}) {
    if (last < 1000 * unit) break;
    unit *= 1000;
    name = larger;
  }
  const double decimals = std::ceil(-std::log10(step / unit) - 1e-9);
  return fmt::format("{:.{}f} {}", value / unit, static_cast<int>(std::clamp(decimals, 0.0, 9.0)),
                     name);
}

void add_tick(Drawing& drawing, float pixel, const Box& box, const RulerStyle& style, Color color) {
  if (style.is_vertical) {
    drawing.add(Line{{box.x1 - kTickLength, pixel}, {box.x1, pixel}, color});
    return;
  }
  const float near = style.is_below ? box.y0 : box.y1;
  drawing.add(Line{
      {pixel, near}, {pixel, style.is_below ? near + kTickLength : near - kTickLength}, color});
}

void add_number(Drawing& drawing, const std::string& text, float center, const Box& box,
                const RulerStyle& style, Color color) {
  constexpr float kGap = kTickLength + 1;
  Point at{box.x1 - kGap - 2, center};
  Anchor anchor = Anchor::right_middle;
  if (!style.is_vertical) {
    at = {center, style.is_below ? box.y0 + kGap : box.y1 - kGap};
    anchor = style.is_below ? Anchor::center_top : Anchor::center_bottom;
  }
  drawing.add(Label{at, anchor, color, style.text_size, Face::mono, text});
}

}  // namespace

std::string print_count(int64_t count) {
  std::string digits = std::to_string(count);
  const size_t first = count < 0 ? 1 : 0;
  for (size_t at = digits.size(); at > first + 3;) digits.insert(at -= 3, " ");
  return digits;
}

size_t find_line_break(std::string_view text, size_t from) {
  const auto is_digit = [&](size_t at) {
    return at < text.size() && text[at] >= '0' && text[at] <= '9';
  };
  for (size_t at = text.find(' ', from); at != std::string_view::npos;
       at = text.find(' ', at + 1)) {
    const bool is_inside = at > 0 && is_digit(at - 1) && is_digit(at + 1) && is_digit(at + 2) &&
                           is_digit(at + 3) && !is_digit(at + 4);
    if (!is_inside) return at;
  }
  return std::string_view::npos;
}

std::string print_range(int64_t begin, int64_t end) {
  return fmt::format("[{}, {})", print_count(begin), print_count(end));
}

std::string print_short_count(int64_t count) {
  if (count != 0 && count % (kMi / 2) == 0 && std::abs(count) >= kMi)
    return print_three_figures(static_cast<double>(count) / static_cast<double>(kMi)) + " Mi";
  if (count != 0 && count % kKi == 0) return print_count(count / kKi) + " Ki";
  return print_count(count);
}

std::string print_bytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  while (std::abs(bytes) >= 1023.5 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return print_three_figures(bytes) + " " + kUnits[unit];
}

std::string print_duration(double nanoseconds) {
  static constexpr const char* kUnits[] = {"ns", "us", "ms", "s"};
  size_t unit = 0;
  while (std::abs(nanoseconds) >= 999.5 && unit + 1 < std::size(kUnits)) {
    nanoseconds /= 1000;
    ++unit;
  }
  return print_three_figures(nanoseconds) + " " + kUnits[unit];
}

std::string print_scale(double units_per_pixel, std::string_view unit) {
  if (units_per_pixel < 1)
    return fmt::format("1 {} = {} px", unit, print_three_figures(1 / units_per_pixel));
  const std::string figure = units_per_pixel < 100 ? print_three_figures(units_per_pixel)
                                                   : print_count(std::llround(units_per_pixel));
  return fmt::format("1 px = {} {}{}", figure, unit, figure == "1" ? "" : "s");
}

std::string print_share(double share) {
  const double percent = share * 100;
  if (percent > 0 && percent < 0.1) return "<0.1 %";
  if (percent < 100 && percent > 99.95) return ">99.9 %";
  return fmt::format("{:.{}f} %", percent, percent == std::floor(percent) ? 0 : 1);
}

std::string print_share(int64_t part, int64_t whole) {
  return print_share(static_cast<double>(part) / static_cast<double>(whole));
}

AxisSpan sane_span(AxisSpan span) {
  if (!std::isfinite(span.lo) || !std::isfinite(span.hi)) return {};
  if (span.lo > span.hi) std::swap(span.lo, span.hi);
  const double width = std::clamp(span.hi - span.lo, kNarrowestSpan, 4.0);
  const double lo = std::clamp(span.lo, -0.9 * width, 1 - 0.1 * width);
  return {lo, lo + width};
}

Axis::Axis(double total, AxisSpan span, float begin, float end)
    : total_(std::max(total, 1.0)), begin_(begin), end_(end) {
  const AxisSpan sane = sane_span(span);
  lo_ = sane.lo * total_;
  hi_ = sane.hi * total_;
}

double Axis::units_per_pixel() const {
  return (hi_ - lo_) / std::max(1.0, std::abs(double{end_} - double{begin_}));
}

double Axis::pixels_per_unit() const { return 1 / units_per_pixel(); }

float Axis::pixel_of(double value) const {
  const double pixel = begin_ + (value - lo_) / (hi_ - lo_) * (double{end_} - double{begin_});
  return static_cast<float>(std::clamp(pixel, std::min(begin_, end_) - kFarthestPixel,
                                       std::max(begin_, end_) + kFarthestPixel));
}

double Axis::value_at(float pixel) const {
  if (begin_ == end_) return lo_;
  return lo_ + (double{pixel} - double{begin_}) / (double{end_} - double{begin_}) * (hi_ - lo_);
}

std::pair<double, double> Axis::shown(double first, double last) const {
  return {std::max(first, lo_), std::min(last, hi_)};
}

std::vector<Tick> make_ticks(const Axis& axis, AxisUnit unit, float least_pixels) {
  const double least = axis.units_per_pixel() * std::max(least_pixels, 4.0F);
  const bool is_whole = unit != AxisUnit::nanoseconds;
  const bool is_binary = unit == AxisUnit::tokens && counts_in_powers_of_two(axis.total());
  const double step = is_binary ? power_of_two_step(least)
                                : one_two_five_step(is_whole ? std::max(least, 1.0) : least);
  const double lo = std::max(axis.lo(), 0.0), hi = std::min(axis.hi(), axis.total());
  std::vector<Tick> ticks;
  for (double n = std::max(0.0, std::ceil(lo / step - 1e-9)); n * step <= hi * (1 + 1e-12); ++n) {
    const double value = n * step;
    Tick tick{value, axis.pixel_of(value), ""};
    if (unit == AxisUnit::nanoseconds)
      tick.text = print_time_tick(value, step, hi);
    else if (is_binary)
      tick.text = print_token_tick(std::llround(value), std::llround(step));
    else
      tick.text = print_count(std::llround(value));
    ticks.push_back(std::move(tick));
  }
  return ticks;
}

void add_ruler(Drawing& drawing, const ViewInput& input, const Axis& axis, const Box& box,
               const RulerStyle& style) {
  const Color line = input.theme->of(Role::grid), ink = input.theme->of(Role::faint_text);
  const float lo = style.is_vertical ? box.y0 : box.x0, hi = style.is_vertical ? box.y1 : box.x1;
  const auto length_of = [&](const std::string& text) {
    return style.is_vertical ? style.text_size
                             : input.text_width(text, style.text_size, Face::mono);
  };
  // Reserves the width of the longest number of the ruler for each number.
  const auto last = static_cast<int64_t>(std::min(axis.hi(), axis.total()));
  const float spacing =
      std::max(48.0F, length_of(style.prefix + print_count(last)) + 2 * kNumberGap);
  float taken_lo = 1e9F, taken_hi = -1e9F;
  for (const Tick& tick : make_ticks(axis, style.unit, style.is_vertical ? 32.0F : spacing)) {
    add_tick(drawing, tick.pixel, box, style, line);
    const std::string text = style.prefix + tick.text;
    const float half = length_of(text) / 2;
    if (2 * half > hi - lo) continue;
    const float center = keep_between(tick.pixel, lo + half, hi - half);
    const bool is_free = taken_hi < taken_lo || center - half >= taken_hi + kNumberGap ||
                         center + half <= taken_lo - kNumberGap;
    if (!is_free) continue;
    add_number(drawing, text, center, box, style, ink);
    taken_lo = center - half;
    taken_hi = center + half;
  }
}

std::string first_that_fits(const TextWidth& width, std::initializer_list<std::string> texts,
                            float size, Face face, float room) {
  for (const std::string& text : texts)
    if (width(text, size, face) <= room) return text;
  return fit_text(width, *(texts.end() - 1), size, face, room);
}

std::string fit_text(const TextWidth& width, const std::string& text, float size, Face face,
                     float room) {
  if (width(text, size, face) <= room) return text;
  for (size_t length = std::min<size_t>(text.size(), 200); length-- > 3;) {
    std::string shorter = text.substr(0, length) + "..";
    if (width(shorter, size, face) <= room) return shorter;
  }
  return {};
}

}  // namespace cpscope::gui
