#pragma once

#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace cpscope::tests {

/// How many cases a sweep over random ones has: `usual` in ./cpscope test, `wide` where the
/// variable CPSCOPE_SWEEPS is "wide", as in --long. `usual` is what every bug so far needed and
/// some more.
inline uint64_t sweep(uint64_t usual, uint64_t wide) {
  const char* wish = std::getenv("CPSCOPE_SWEEPS");
  return wish != nullptr && std::string_view(wish) == "wide" ? wide : usual;
}

}  // namespace cpscope::tests
