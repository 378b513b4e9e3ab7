#pragma once

#include "gui/draw/theme.h"
#include "gui/model/error_field.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

namespace cpscope::gui {

/// The range of error shares that colours distinguish: those of the rows, up to the budget.
class ErrorScale {
 public:
  ErrorScale(const ErrorField& field, const Theme& theme)
      : ErrorScale(field, field.histogram, theme) {}
  /// Like the constructor above, for one of several fields that share one colour scale.
  ErrorScale(const ErrorField& field, const ErrorHistogram& all, const Theme& theme);

  /// Logarithms to base 10 of the shares at its ends.
  double lo() const { return lo_; }
  double hi() const { return hi_; }
  /// Position of a positive share on the scale, [0, 1].
  double place_of(double share) const;
  /// No error, some error, too much (or not a number), not compared: each has its own colours.
  Color color_of(float share) const;
  Color exact_color() const { return exact_; }
  Color left_out_color() const { return left_out_; }

 private:
  static constexpr size_t kShades = 256;
  const ErrorField& field_;
  double lo_ = -1, hi_ = 0;
  std::array<Color, kShades> shades_{};
  Color exact_, left_out_, over_;
};

/// Prints two significant figures: "0", "1.2e-7", "0.031", "4.5".
std::string print_figure(double value);
/// Prints two values with as many figures as it takes to tell them apart, at least three.
std::pair<std::string, std::string> print_apart(double seen, double expected);
/// Prints a round share on a scale: "2 %" of a budget, "0.02" of the typical row.
std::string print_tick(const ErrorField& field, double share);
/// 1, 2 and 5 times powers of ten between two logarithms; only powers of ten if there are many
/// decades.
std::vector<double> round_shares(double lo, double hi);
/// Prints a share of a budget as "31.2 %", of the typical row as a figure.
std::string print_error_share(const ErrorField& field, double share);

}  // namespace cpscope::gui
