// The gallery's mistakes of bias, ALiBi, dropout and latent rows, planted in runs of dtype fp8: the
// answer fails, and its cause is named from it alone.

#include "sim/faults/fault.h"
#include "tests/program/judged_causes.h"

#include <string>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

constexpr NamedCause kCausesInFp8[] = {
    {"alibi_distances_of_the_tile", "terms_by_local_place"},
    {"alibi_distances_across_documents", "alibi_across_documents"},
    {"alibi_slopes_of_local_heads", "heads_exchanged"},
    {"bias_columns_by_received_row", "terms_by_local_place"},
    {"dropout_same_offset_in_every_step", "dropout_offset_reused"},
    {"dropout_redrawn_in_backward", "dropout_redrawn"},
    {"dropout_scaled_twice", "factor"},
    {"dropout_before_the_softmax", "dropout_before_softmax"},
    {"dropout_heads_numbered_from_zero", "heads_exchanged"},
    {"latent_dv_lost", "dv_not_added"},
    {"latent_dv_in_the_rotated_elements", "dv_misplaced"},
};

/// The scenario of a fault in another dtype.
std::string in_dtype(const std::string& scenario, const std::string& dtype) {
  std::string text = scenario;
  const size_t at = text.find("dtype = ");
  EXPECT_NE(at, std::string::npos) << text;
  return text.replace(at, text.find('\n', at) - at, "dtype = \"" + dtype + "\"");
}

TEST(Fp8TermsCauses, AreThoseThatAreNamedInOtherDtypes) {
  for (const NamedCause& expected : kCausesInFp8) {
    expect_named(expected, in_dtype(fault_called(expected.fault).scenario, "fp8"));
  }
}

}  // namespace
}  // namespace cpscope::tests
