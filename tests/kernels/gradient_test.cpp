#include "kernels/key_gradient.h"
#include "kernels/query_gradient.h"
#include "tests/kernels/gradient_runner.h"

#ifdef CPSCOPE_EMULATED
#include "kernels/emulator/settings.h"
#include "kernels/softcap.h"
#endif

#include <cmath>
#include <ostream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope::kernels {
namespace {

constexpr GradientKernels kPortable{portable_query_gradient_tile, portable_key_gradient_tile,
                                    launch_portable_query_gradient, launch_portable_key_gradient};

/// One random problem.
struct Case {
  Dtype dtype = Dtype::bf16;
  int32_t head_dim_qk = 64, head_dim_v = 64;
  float softcap = 0.0f;
  int32_t num_heads = 1, group = 1, first_head = 0;
  int32_t q_rows = 150, kv_rows = 170;
  uint32_t seed = 1;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << fmt::format("dtype {}, dims {}/{}, softcap {}, {} heads from {} in groups of {}, {} x {}",
                      static_cast<int>(c.dtype), c.head_dim_qk, c.head_dim_v, c.softcap,
                      c.num_heads, c.first_head, c.group, c.q_rows, c.kv_rows);
}

AttentionShape shape_of(const Case& c) {
  AttentionShape shape;
  shape.dtype = c.dtype;
  shape.q_rows = c.q_rows;
  shape.kv_rows = c.kv_rows;
  shape.num_heads = c.num_heads;
  shape.group = c.group;
  shape.first_head = c.first_head;
  shape.first_kv_head = c.first_head / c.group;
  shape.num_kv_heads = (c.first_head + c.num_heads - 1) / c.group - shape.first_kv_head + 1;
  shape.head_dim_qk = c.head_dim_qk;
  shape.head_dim_v = c.head_dim_v;
  shape.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim_qk));
  shape.softcap = c.softcap;
  return shape;
}

GradientProblem problem_of(const Case& c) {
  return make_gradient_problem(shape_of(c), random_bands(c.q_rows, c.kv_rows, c.seed), c.seed);
}

/// What is wrong with the result; empty when all is right.
std::string find_fault(const AttentionShape& shape, const ExactGradients& exact,
                       const KernelGradients& got) {
  std::string fault = got.stray_write;
  fault += find_excess("dq", exact.dq, got.dq, shape.num_heads, shape.head_dim_qk);
  fault += find_excess("dk", exact.dk, got.dk, shape.num_kv_heads, shape.head_dim_qk);
  fault += find_excess("dv", exact.dv, got.dv, shape.num_kv_heads, shape.head_dim_v);
  return fault;
}

class Gradient : public ::testing::TestWithParam<Case> {};

TEST_P(Gradient, IsThatOfTheDefinition) {
  const GradientProblem problem = problem_of(GetParam());
  const ExactGradients exact = solve(problem);
  EXPECT_EQ(find_fault(problem.shape, exact, run_gradients(kPortable, problem, exact)), "");
}

INSTANTIATE_TEST_SUITE_P(
    EveryInstance, Gradient,
    ::testing::Values(Case{Dtype::bf16, 8, 8}, Case{Dtype::bf16, 40, 40, 20.0f},
                      Case{Dtype::fp16, 64, 64, 0.0f, 3, 2, 1}, Case{Dtype::fp16, 64, 24, 5.0f},
                      Case{Dtype::bf16, 128, 128, 0.0f, 2, 2, 1}, Case{Dtype::fp16, 128, 72, 5.0f},
                      Case{Dtype::bf16, 192, 128}, Case{Dtype::fp16, 192, 128, 20.0f},
                      Case{Dtype::bf16, 256, 256}, Case{Dtype::fp16, 136, 256, 5.0f}));

}  // namespace
}  // namespace cpscope::kernels
