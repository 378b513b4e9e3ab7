#include "gui/model/numbers/error_scale.h"

#include "gui/model/axis.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

constexpr double kMostDecades = 4;
constexpr double kLeastDecades = 1;
constexpr double kBudgetDecades = 1.5;  // from the darkest colour to the budget's

}  // namespace

ErrorScale::ErrorScale(const ErrorField& field, const ErrorHistogram& all, const Theme& theme)
    : field_(field),
      exact_(theme.of(Role::raised)),
      left_out_(theme.of(Role::background)),
      over_(theme.of(Role::error)) {
  double lowest = 100, highest = -100;
  for (size_t bin = 0; bin < all.bins.size(); ++bin) {
    if (all.bins[bin] == 0) continue;
    const double begin = std::log10(ErrorHistogram::begin_of(static_cast<int32_t>(bin)));
    lowest = std::min(lowest, begin);
    highest = std::max(highest, begin + 1.0 / ErrorHistogram::kBinsPerDecade);
  }
  if (highest < lowest) lowest = highest = 0;
  // Values beyond a budget have a colour of their own, whatever their share is.
  hi_ = field.has_row_budgets() ? 0.0 : highest;
  lo_ = std::clamp(lowest, hi_ - kMostDecades, hi_ - kLeastDecades);
  for (size_t i = 0; i < kShades; ++i)
    shades_[i] = theme.of_quantity(static_cast<double>(i) / (kShades - 1));
}

double ErrorScale::place_of(double share) const {
  const double place = (std::log10(share) - lo_) / (hi_ - lo_);
  return std::isnan(place) ? 0.0 : std::clamp(place, 0.0, 1.0);
}

Color ErrorScale::color_of(float share) const {
  if (share < 0) return left_out_;
  if (field_.is_over(share)) return over_;
  if (share == 0) return exact_;
  // A share of a budget has one colour in all runs: only the upper half of the budget is bright.
  const double place = field_.has_row_budgets()
                           ? std::clamp(1 + std::log10(double{share}) / kBudgetDecades, 0.0, 1.0)
                           : place_of(share);
  return shades_[static_cast<size_t>(place * (kShades - 1) + 0.5)];
}

std::string print_figure(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  const double size = std::abs(value);
  if (size == 0) return "0";
  if (size >= 0.00995 && size < 9999.5) {
    std::string text = fmt::format("{:.{}f}", value,
                                   size < 0.0995 ? 3
                                   : size < 9.95 ? 2
                                   : size < 99.5 ? 1
                                                 : 0);
    if (text.find('.') != std::string::npos) {
      text.erase(text.find_last_not_of('0') + 1);
      if (text.back() == '.') text.pop_back();
    }
    return text;
  }
  std::string text = fmt::format("{:.1e}", value);
  if (const size_t whole = text.find(".0e"); whole != std::string::npos) text.erase(whole, 2);
  // Removes the zero of the exponent in "1.2e-07".
  const size_t exponent = text.find('e') + 2;
  if (text[exponent] == '0') text.erase(exponent, 1);
  if (text[exponent - 1] == '+') text.erase(exponent - 1, 1);
  return text;
}

std::pair<std::string, std::string> print_apart(double seen, double expected) {
  constexpr int kLeast = 3, kMost = 17;
  const auto print = [](double value, int figures) {
    return std::isnan(value) ? std::string("NaN") : fmt::format("{:.{}g}", value, figures);
  };
  for (int figures = kLeast;; ++figures) {
    std::string a = print(seen, figures), b = print(expected, figures);
    if (a != b || seen == expected || figures == kMost) return {std::move(a), std::move(b)};
  }
}

std::string print_tick(const ErrorField& field, double share) {
  if (!field.has_row_budgets()) return print_figure(share);
  if (share > 1.5) return print_figure(share) + " x";
  return share > 0.0009 ? fmt::format("{:g} %", share * 100) : print_figure(share * 100) + " %";
}

std::vector<double> round_shares(double lo, double hi) {
  std::vector<double> shares;
  const bool has_few = hi - lo < 2.5;
  for (double decade = std::floor(lo); decade <= hi; ++decade) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double share = factor * std::pow(10.0, decade), place = std::log10(share);
      if ((factor == 1.0 || has_few) && place > lo - 1e-9 && place < hi + 1e-9)
        shares.push_back(share);
    }
  }
  return shares;
}

std::string print_error_share(const ErrorField& field, double share) {
  if (!field.has_row_budgets() || !std::isfinite(share)) return print_figure(share);
  return share < 10 ? print_share(share) : print_figure(share) + " x";
}

}  // namespace cpscope::gui
