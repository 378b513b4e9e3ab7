// The door that libFuzzer knocks at; CPSCOPE_FUZZ_TARGET names the target of this program.

#include "tests/fuzz/fuzz_targets.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const cpscope::fuzzing::Target& target =
      cpscope::fuzzing::find_target(CPSCOPE_FUZZ_TARGET);
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (const std::optional<std::string> broken = target.check(bytes)) {
    std::fprintf(stderr, "a promise is broken: %s\n", broken->c_str());
    std::abort();
  }
  return 0;
}
