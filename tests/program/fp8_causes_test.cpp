// Every fault of dtype fp8 on CPSCOPE_FP8_RANKS ranks: the answer fails, and its cause is named
// from it alone.

#include "sim/faults/fault.h"
#include "tests/program/judged_causes.h"

#include <string>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

constexpr NamedCause kCauses[] = {
    {"fp8_dkv_summed_where_computed", "partial_missing"},
    {"fp8_receivers_scale", "receivers_scale"},
    {"fp8_key_scales_of_values", "key_scales_of_values"},
    {"fp8_scale_for_descale", "scale_for_descale"},
    {"fp8_stale_scale", "stale_scale"},
    {"fp8_weights_unscaled", "weights_unscaled"},
    {"fp8_rounded_weights_summed", "rounded_weights_summed"},
    {"fp8_amax_over_padding", "amax_over_padding"},
    {"fp8_blocks_cross_documents", "blocks_cross_documents"},
    {"fp8_gradients_in_e4m3", "gradients_in_e4m3"},
};

void replace(std::string& text, const std::string& old, const std::string& by) {
  if (const size_t at = text.find(old); at != std::string::npos) text.replace(at, old.size(), by);
}

class Fp8Causes : public testing::TestWithParam<std::string> {};

TEST_P(Fp8Causes, AreNamedOn) {
  const std::string ranks = "cp_size = " + GetParam() + "\n";
  for (const NamedCause& expected : kCauses) {
    const Fault& fault = fault_called(expected.fault);
    std::string text = fault.scenario;
    for (const char* old : {"cp_size = 1\n", "cp_size = 4\n"}) replace(text, old, ranks);
    expect_named(expected, text);
  }
}

// The number is in the name: two programs hold this test, and names are told apart nowhere else.
INSTANTIATE_TEST_SUITE_P(Planted, Fp8Causes, testing::Values(CPSCOPE_FP8_RANKS),
                         [](const auto& ranks) { return ranks.param + "Ranks"; });

}  // namespace
}  // namespace cpscope::tests
