#pragma once

#include "kernels/device/device.h"
#include "tests/kernels/attention/attention_cases.h"
#include "tests/kernels/attention/attention_device.h"
#include "tests/support/sweep.h"

#include <cstdint>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#ifdef CPSCOPE_EMULATED
#include "kernels/emulator/settings.h"
#endif

/// Shared code for tests of the kernels of sm_90a, on the emulator or a Hopper GPU.
namespace cpscope::tests {

#ifdef CPSCOPE_EMULATED
inline const uint64_t kCases = sweep(4, 10);  // for each pair of head_dims
#else
inline constexpr uint64_t kCases = 200;
#endif

/// Empty, or the reason why no kernel of sm_90a can run here.
inline std::string missing_hopper() {
  if (std::string missing = missing_device(); !missing.empty()) return missing;
  const int32_t capability = kernels::describe_device(0).compute_capability;
  return capability == 90 ? "" : fmt::format("the device is of generation {}, not 90", capability);
}

/// Sets another order of threads and other times at which copies and products complete.
inline void draw_schedule([[maybe_unused]] uint64_t seed) {
#ifdef CPSCOPE_EMULATED
  kernels::emulator::settings().seed = seed;
#endif
}

class Hopper : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string missing = missing_hopper(); !missing.empty())
      GTEST_SKIP() << "requires gpu: " << missing;
  }
  void TearDown() override { draw_schedule(1); }
};

}  // namespace cpscope::tests
