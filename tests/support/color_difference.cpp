#include "tests/support/color_difference.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>

namespace cpscope::tests {

namespace {

using Triple = std::array<double, 3>;
using Matrix = std::array<Triple, 3>;

constexpr Matrix kNormal = {{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}};
constexpr Matrix kProtan = {{{0.152286, 1.052583, -0.204868},
                             {0.114503, 0.786281, 0.099216},
                             {-0.003882, -0.048116, 1.051998}}};
constexpr Matrix kDeutan = {{{0.367322, 0.860646, -0.227968},
                             {0.280085, 0.672501, 0.047413},
                             {-0.011820, 0.042940, 0.968881}}};
constexpr Matrix kTritan = {{{1.255528, -0.076749, -0.178779},
                             {-0.078411, 0.930809, 0.147602},
                             {0.004733, 0.691367, 0.303900}}};
// sRGB (IEC 61966-2-1) to XYZ, D65.
constexpr Matrix kToXyz = {{{0.4124564, 0.3575761, 0.1804375},
                            {0.2126729, 0.7151522, 0.0721750},
                            {0.0193339, 0.1191920, 0.9503041}}};
constexpr Triple kWhite = {0.95047, 1.0, 1.08883};

Triple multiply(const Matrix& matrix, const Triple& v) {
  Triple result{};
  for (size_t i = 0; i < 3; ++i) {
    for (size_t k = 0; k < 3; ++k) result[i] += matrix[i][k] * v[k];
  }
  return result;
}

double linear(uint8_t channel) {
  const double value = channel / 255.0;
  return value <= 0.04045 ? value / 12.92 : std::pow((value + 0.055) / 1.055, 2.4);
}

Triple linear(gui::Color c) { return {linear(c.r), linear(c.g), linear(c.b)}; }

double in_radians(double degrees) { return degrees * std::numbers::pi / 180; }

double hue_of(double a, double b) {
  if (a == 0 && b == 0) return 0;
  const double degrees = std::atan2(b, a) * 180 / std::numbers::pi;
  return degrees < 0 ? degrees + 360 : degrees;
}

double mean_hue(double h1, double h2, bool is_gray) {
  if (is_gray) return h1 + h2;
  if (std::abs(h1 - h2) <= 180) return (h1 + h2) / 2;
  return h1 + h2 < 360 ? (h1 + h2 + 360) / 2 : (h1 + h2 - 360) / 2;
}

}  // namespace

Lab look_at(gui::Color color, Eyes eyes) {
  const std::array<const Matrix*, 4> matrices = {&kNormal, &kProtan, &kDeutan, &kTritan};
  Triple seen = multiply(*matrices[static_cast<size_t>(eyes)], linear(color));
  for (double& channel : seen) channel = std::clamp(channel, 0.0, 1.0);
  const Triple xyz = multiply(kToXyz, seen);
  const auto compress = [](double t) {
    return t > 216.0 / 24389.0 ? std::cbrt(t) : (24389.0 / 27.0 * t + 16) / 116;
  };
  const double x = compress(xyz[0] / kWhite[0]), y = compress(xyz[1] / kWhite[1]),
               z = compress(xyz[2] / kWhite[2]);
  return {116 * y - 16, 500 * (x - y), 200 * (y - z)};
}

double difference_of(const Lab& first, const Lab& second) {
  const auto seventh = [](double c) {
    return std::sqrt(std::pow(c, 7) / (std::pow(c, 7) + std::pow(25.0, 7)));
  };
  const double mean_raw = (std::hypot(first.a, first.b) + std::hypot(second.a, second.b)) / 2;
  const double stretch = 1 + 0.5 * (1 - seventh(mean_raw));
  const double a1 = first.a * stretch, a2 = second.a * stretch;
  const double c1 = std::hypot(a1, first.b), c2 = std::hypot(a2, second.b);
  const double h1 = hue_of(a1, first.b), h2 = hue_of(a2, second.b);
  const bool is_gray = c1 * c2 == 0;

  double turn = is_gray ? 0 : h2 - h1;
  if (turn > 180) turn -= 360;
  if (turn < -180) turn += 360;
  const double dl = second.l - first.l, dc = c2 - c1;
  const double dh = 2 * std::sqrt(c1 * c2) * std::sin(in_radians(turn / 2));

  const double l = (first.l + second.l) / 2, c = (c1 + c2) / 2, h = mean_hue(h1, h2, is_gray);
  const double t = 1 - 0.17 * std::cos(in_radians(h - 30)) + 0.24 * std::cos(in_radians(2 * h)) +
                   0.32 * std::cos(in_radians(3 * h + 6)) - 0.2 * std::cos(in_radians(4 * h - 63));
  const double sl = 1 + 0.015 * (l - 50) * (l - 50) / std::sqrt(20 + (l - 50) * (l - 50));
  const double sc = 1 + 0.045 * c, sh = 1 + 0.015 * c * t;
  const double blue = 30 * std::exp(-((h - 275) / 25) * ((h - 275) / 25));
  const double rotation = -std::sin(in_radians(2 * blue)) * 2 * seventh(c);
  const double l_part = dl / sl, c_part = dc / sc, h_part = dh / sh;
  return std::sqrt(l_part * l_part + c_part * c_part + h_part * h_part +
                   rotation * c_part * h_part);
}

double contrast_of(gui::Color first, gui::Color second) {
  const auto level = [](gui::Color c) {
    return 0.2126 * linear(c.r) + 0.7152 * linear(c.g) + 0.0722 * linear(c.b) + 0.05;
  };
  const double a = level(first), b = level(second);
  return std::max(a, b) / std::min(a, b);
}

}  // namespace cpscope::tests
