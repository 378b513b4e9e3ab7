#include "sim/scenario/portable_random.h"

#include <algorithm>
#include <cmath>

namespace cpscope {
namespace {

uint64_t mix_bits(uint64_t bits) {
  bits += 0x9E3779B97F4A7C15ULL;
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9ULL;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBULL;
  return bits ^ (bits >> 31);
}

constexpr double kLn2 = 0.69314718055994530942;

}  // namespace

uint64_t draw_bits(uint64_t seed, uint64_t stream, uint64_t counter) {
  return mix_bits(mix_bits(mix_bits(seed) ^ stream) ^ counter);
}

double draw_unit(uint64_t seed, uint64_t stream, uint64_t counter) {
  // 52 bits plus a half: the half excludes both ends and the sum is still exact.
  return (static_cast<double>(draw_bits(seed, stream, counter) >> 12) + 0.5) * 0x1p-52;
}

double portable_exp(double x) {
  x = std::clamp(x, -700.0, 700.0);
  const double power = std::floor(x / kLn2 + 0.5);
  const double rest = x - power * kLn2;
  // |rest| <= 0.35: 18 Taylor terms are below one rounding. Horner from the smallest term.
  double sum = 1.0;
  for (int term = 18; term >= 1; --term) sum = 1.0 + sum * rest / term;
  return std::ldexp(sum, static_cast<int>(power));
}

double portable_log(double x) {
  int power = 0;
  double mantissa = std::frexp(x, &power);  // in [0.5, 1)
  if (mantissa < 0.70710678118654752440) {
    mantissa *= 2.0;
    --power;
  }
  // ln m = 2 artanh((m-1)/(m+1)); |s| <= 0.172, so 12 odd terms are below one rounding.
  const double s = (mantissa - 1.0) / (mantissa + 1.0);
  double sum = 0.0;
  for (int term = 25; term >= 1; term -= 2) sum = 1.0 / term + sum * s * s;
  return 2.0 * s * sum + power * kLn2;
}

double find_normal_quantile(double u) {
  constexpr double kA[] = {-3.969683028665376e+01, 2.209460984245205e+02,  -2.759285104469687e+02,
                           1.383577518672690e+02,  -3.066479806614716e+01, 2.506628277459239e+00};
  constexpr double kB[] = {-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02,
                           6.680131188771972e+01, -1.328068155288572e+01};
  constexpr double kC[] = {-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
                           -2.549732539343734e+00, 4.374664141464968e+00,  2.938163982698783e+00};
  constexpr double kD[] = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00,
                           3.754408661907416e+00};
  constexpr double kTail = 0.02425;
  if (u < kTail || u > 1.0 - kTail) {
    const double tail = u < 0.5 ? u : 1.0 - u;
    const double q = std::sqrt(-2.0 * portable_log(tail));
    const double top = ((((kC[0] * q + kC[1]) * q + kC[2]) * q + kC[3]) * q + kC[4]) * q + kC[5];
    const double bottom = (((kD[0] * q + kD[1]) * q + kD[2]) * q + kD[3]) * q + 1.0;
    return u < 0.5 ? top / bottom : -top / bottom;
  }
  const double q = u - 0.5;
  const double r = q * q;
  const double top =
      (((((kA[0] * r + kA[1]) * r + kA[2]) * r + kA[3]) * r + kA[4]) * r + kA[5]) * q;
  const double bottom = ((((kB[0] * r + kB[1]) * r + kB[2]) * r + kB[3]) * r + kB[4]) * r + 1.0;
  return top / bottom;
}

}  // namespace cpscope
