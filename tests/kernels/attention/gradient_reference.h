#pragma once

#include "kernels/dispatch/attention_dispatch.h"
#include "sim/plan/band.h"
#include "tests/kernels/attention/alibi_case.h"

#include <cstdint>
#include <vector>

namespace cpscope::kernels {

/// Backward of one compute item with the inputs that kernels get. Statistics of whole rows are
/// given; the rows may also have seen keys of other items.
struct GradientProblem {
  AttentionShape shape;
  std::vector<BandSlice> slices;
  std::vector<double> q, k, v, d_out;  // [row, head, element], exact in the dtype
  std::vector<double> log2_lse;        // [head, q row]
  std::vector<double> delta;           // [head, q row]
  tests::AlibiCase alibi;
};

/// A problem with random inputs; `slices` must not contain a pair twice.
GradientProblem make_gradient_problem(const AttentionShape& shape, std::vector<BandSlice> slices,
                                      uint32_t seed, const tests::AlibiCase& alibi = {});

/// Bands of random kind in an area of q_rows x kv_rows, with rows on both sides that have no
/// partner; no pair is visible twice.
std::vector<BandSlice> random_bands(int32_t q_rows, int32_t kv_rows, uint32_t seed);

/// One gradient in fp64, and the largest error that a kernel may have in each element.
struct ExactGradient {
  std::vector<double> value;   // [row, head, element]
  std::vector<double> budget;  // from rounding P and dS to the dtype, and from fp32 sums
};

struct ExactGradients {
  ExactGradient dq, dk, dv;      // with is_latent dk is that of K and V, and dv is empty
  std::vector<bool> q_row_sees;  // [q row] sees any key
  std::vector<bool> k_row_seen;  // [kv row] is seen by any query
};

/// Dense loops over all pairs, straight from the definition.
ExactGradients solve(const GradientProblem& problem);

}  // namespace cpscope::kernels
