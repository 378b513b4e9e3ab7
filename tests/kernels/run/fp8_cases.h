#pragma once

#include "sim/scenario/scenario.h"
#include "tests/kernels/lower/piece_cases.h"
#include "tests/support/sweep.h"

#include <string>
#include <vector>

#include <fmt/format.h>

namespace cpscope::tests {

/// Every recipe, format and wire of dtype fp8.
inline std::vector<Fp8> fp8_recipes() {
  return {{.recipe = Fp8Recipe::current},
          {.recipe = Fp8Recipe::delayed},
          {.recipe = Fp8Recipe::mxfp8, .kv_wire = Fp8KvWire::bf16},
          {.recipe = Fp8Recipe::current, .format = Fp8Format::e4m3},
          {.recipe = Fp8Recipe::delayed, .kv_wire = Fp8KvWire::bf16}};
}

/// All of them, or on the emulator, which takes long, two that depend on the number.
inline std::vector<Fp8> some_recipes([[maybe_unused]] size_t number) {
  std::vector<Fp8> all = fp8_recipes();
#ifdef CPSCOPE_EMULATED
  if (!is_wide_sweep()) return {all[number % all.size()], all[(number + 2) % all.size()]};
#endif
  return all;
}

inline std::string name_of(const Fp8& fp8) {
  return fmt::format("{}, {}, kv_wire {}", to_name(fp8.recipe), to_name(fp8.format),
                     to_name(fp8.kv_wire));
}

/// Documents with grouped heads.
inline Scenario fp8_scenario_of(const char* type, const Fp8& fp8, int32_t head_dim = 40,
                                const std::string& lengths = "61, 30, 1") {
  Scenario scenario = scenario_of_pieces(type, 4, head_dim, lengths, 2, 4);
  scenario.numerics.fp8 = fp8;
  return scenario;
}

}  // namespace cpscope::tests
