#pragma once

#include "kernels/device/device_code.h"

#include <cmath>

namespace cpscope::kernels::device {

inline constexpr float kLog2E = 1.44269504f;
inline constexpr float kLn2 = 0.693147181f;

struct TanhPoint {
  float value = 0.0f;
  float slope = 0.0f;  // 1 - value^2, without its cancellation near +-1
};

/// tanh and its derivative at x.
/// Error: relative 4e-7 of the value, 7e-7 of the slope
/// (tests/kernels/attention/gradient_test.cpp). Source: tanh x = (1 - u) / (1 + u) with u = exp(-2
/// x); near 0, where 1 - u cancels, a polynomial in x^2 that interpolates (tanh x - x) / x^3 on [0,
/// 0.55] in Chebyshev's nodes.
__device__ __forceinline__ TanhPoint tanh_with_slope(float x) {
  constexpr float kBorder = 0.55f;
  const float magnitude = fabsf(x);
  const float u = exp2_approx(-2.0f * kLog2E * magnitude);
  const float r = reciprocal_approx(1.0f + u);
  const float z = x * x;
  const float near_zero =
      x + x * z * (((0.016432779f * z - 0.052669011f) * z + 0.133206755f) * z - 0.333329439f);
  const float far = copysignf((1.0f - u) * r, x);
  return {magnitude < kBorder ? near_zero : far, 4.0f * u * r * r};
}

}  // namespace cpscope::kernels::device
