#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace cpscope::gui {

/// A logarithmic scale; values at or below 0 are at its lower end.
class RatioAxis {
 public:
  /// The range of values and the pixels of both ends; adds some room on both sides.
  RatioAxis(double least, double most, float begin, float end) : begin_(begin), end_(end) {
    least = std::max(least, 1e-3);
    most = std::max(most, least);
    // Room on both sides, which also gives an empty range a width.
    const double room = std::max(1.15, std::pow(most / least, 0.06));
    low_ = std::log(least / room);
    high_ = std::log(most * room);
  }

  float pixel_of(double value) const {
    const double at = (std::log(std::max(value, std::exp(low_))) - low_) / (high_ - low_);
    return begin_ + static_cast<float>(at) * (end_ - begin_);
  }

  /// Round values inside the range, few enough to be readable.
  std::vector<double> ticks() const {
    std::vector<double> values;
    if (high_ - low_ < std::log(4.0)) {
      // Such a short part of the scale is nearly linear.
      const double low = std::exp(low_), high = std::exp(high_);
      double step = std::pow(10.0, std::floor(std::log10(high - low)));
      for (const double part : {0.1, 0.2, 0.5, 1.0}) {
        if ((high - low) / (part * step) > 7) continue;
        step *= part;
        break;
      }
      for (double value = std::ceil(low / step) * step; value < high; value += step)
        values.push_back(value);
      return values;
    }
    const bool is_wide = high_ - low_ > std::log(200.0);
    for (double power = std::pow(10.0, std::floor(low_ / std::log(10.0))); std::log(power) < high_;
         power *= 10) {
      for (const double digit : {1.0, 2.0, 5.0}) {
        if (is_wide && digit != 1.0) continue;
        const double value = power * digit;
        if (std::log(value) > low_ && std::log(value) < high_) values.push_back(value);
      }
    }
    return values;
  }

 private:
  double low_, high_;
  float begin_, end_;
};

}  // namespace cpscope::gui
