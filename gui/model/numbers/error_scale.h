#pragma once

#include "gui/draw/theme.h"
#include "gui/model/error_field.h"

#include <array>
#include <string>
#include <vector>

namespace cpscope::gui {

/// Which shares of a tensor's errors are told apart by colour: those that rows have, up to the
/// budget.
class ErrorScale {
 public:
  ErrorScale(const ErrorField& field, const Theme& theme)
      : ErrorScale(field, field.histogram, theme) {}
  /// The same for one of several that are told apart by the same colours.
  ErrorScale(const ErrorField& field, const ErrorHistogram& all, const Theme& theme);

  /// Logarithms to base 10 of the shares at its ends.
  double lo() const { return lo_; }
  double hi() const { return hi_; }
  /// Where on the scale a positive share lies, [0, 1].
  double place_of(double share) const;
  /// No error, some error, too much (or no number), nobody looked: all have colours of their own.
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

/// "0", "1.2e-7", "0.031", "4.5": two figures.
std::string print_figure(double value);
/// A round share on a scale: "2 %" of a budget, "0.02" of the typical row.
std::string print_tick(const ErrorField& field, double share);
/// 1, 2 and 5 times powers of ten, or those powers alone where there are many decades, between two
/// logarithms.
std::vector<double> round_shares(double lo, double hi);
/// A share of a budget as "31.2 %", of the typical row as a figure.
std::string print_error_share(const ErrorField& field, double share);

}  // namespace cpscope::gui
