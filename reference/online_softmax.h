#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

namespace cpscope::reference {

/// The log-sum-exp of no logits: -inf.
template <class T>
inline constexpr T kNothing = -std::numeric_limits<T>::infinity();

/// log(exp(a) + exp(b)); -inf stands for no logits, and stays -inf if both sides are.
template <class T>
T log_sum_exp(T a, T b) {
  if (a == kNothing<T>) return b;
  if (b == kNothing<T>) return a;
  const T high = std::max(a, b), low = std::min(a, b);
  return high + std::log1p(std::exp(low - high));
}

/// Weight of a part whose lse is `part` in a whole whose lse is `whole`; an empty part weighs 0.
template <class T>
T weight_of(T part, T whole) {
  return part == kNothing<T> ? T(0) : std::exp(part - whole);
}

}  // namespace cpscope::reference
