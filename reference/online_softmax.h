#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

namespace cpscope::reference {

/// log(exp(a) + exp(b)); -inf means nothing, and nothing with nothing is nothing.
template <class T>
T log_sum_exp(T a, T b) {
  constexpr T kNothing = -std::numeric_limits<T>::infinity();
  if (a == kNothing) return b;
  if (b == kNothing) return a;
  const T high = std::max(a, b), low = std::min(a, b);
  return high + std::log1p(std::exp(low - high));
}

/// Weight of a part whose lse is `part` in a whole whose lse is `whole`; an empty part weighs 0.
template <class T>
T weight_of(T part, T whole) {
  return part == -std::numeric_limits<T>::infinity() ? T(0) : std::exp(part - whole);
}

}  // namespace cpscope::reference
