#pragma once

#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace cpscope::tests {

/// True if the variable CPSCOPE_SWEEPS is "wide", as in ./cpscope test --long.
inline bool is_wide_sweep() {
  const char* wish = std::getenv("CPSCOPE_SWEEPS");
  return wish != nullptr && std::string_view(wish) == "wide";
}

/// The number of cases of a random sweep. `usual` is more than any bug so far has needed.
inline uint64_t sweep(uint64_t usual, uint64_t wide) { return is_wide_sweep() ? wide : usual; }

}  // namespace cpscope::tests
