#pragma once

#include <cstdint>

namespace cpscope {

// Numbers that are the same on every machine: std:: distributions differ between libraries, and
// std::log and std::exp between libms. Only +, -, *, / and exact functions are used here; the
// project compiles with -ffp-contract=off.

/// 64 random bits, a function of (seed, stream, counter) alone.
/// Source: SplitMix64's finalizer (Steele, Lea & Flood 2014), chained over the three words.
uint64_t draw_bits(uint64_t seed, uint64_t stream, uint64_t counter);

/// Uniform on (0, 1), never 0 or 1.
double draw_unit(uint64_t seed, uint64_t stream, uint64_t counter);

/// e^x. Relative error below 1e-14 for |x| < 30; arguments are clamped to [-700, 700].
double portable_exp(double x);

/// Natural log of x > 0. Error below 1e-14 * (1 + |ln x|).
double portable_log(double x);

/// Quantile of the standard normal distribution for u in (0, 1). Relative error below 1.2e-9.
/// Source: P. J. Acklam's rational approximation (2003).
double find_normal_quantile(double u);

}  // namespace cpscope
