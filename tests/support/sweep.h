#pragma once

#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace cpscope::tests {

/// Does the variable CPSCOPE_SWEEPS say "wide", as in ./cpscope test --long?
inline bool is_wide_sweep() {
  const char* wish = std::getenv("CPSCOPE_SWEEPS");
  return wish != nullptr && std::string_view(wish) == "wide";
}

/// How many cases a sweep over random ones has. `usual` is what every bug so far needed, and more.
inline uint64_t sweep(uint64_t usual, uint64_t wide) { return is_wide_sweep() ? wide : usual; }

}  // namespace cpscope::tests
