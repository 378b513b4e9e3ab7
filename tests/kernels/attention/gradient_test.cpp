#include "tests/kernels/attention/attention_device.h"
#include "tests/kernels/attention/gradient_runner.h"
#include "tests/support/sweep.h"

#ifdef CPSCOPE_EMULATED
#include "kernels/attention/softcap.h"
#include "kernels/emulator/settings.h"
#endif

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope::kernels {
namespace {

/// The portable kernels; the fp32 kernels are the same in every generation.
const GradientKernels kPortable{[](const AttentionShape& shape) {
                                  return query_gradient_tile_shape(Generation::portable, shape);
                                },
                                [](const AttentionShape& shape) {
                                  return key_gradient_tile_shape(Generation::portable, shape);
                                },
                                [](const BackwardLaunch& launch, Stream stream) {
                                  launch_query_gradient(Generation::portable, launch, stream);
                                },
                                [](const BackwardLaunch& launch, Stream stream) {
                                  launch_key_gradient(Generation::portable, launch, stream);
                                }};

/// One random problem.
struct Case {
  Dtype dtype = Dtype::bf16;
  int32_t head_dim_qk = 64, head_dim_v = 64;
  float softcap = 0.0f;
  int32_t num_heads = 1, group = 1, first_head = 0;
  int32_t q_rows = 150, kv_rows = 170;
  uint32_t seed = 1;
};

std::string name_of(const Case& c) {
  const char* dtype = c.dtype == Dtype::bf16 ? "bf16" : c.dtype == Dtype::fp16 ? "fp16" : "fp32";
  std::string name = fmt::format("{}Dims{}And{}", dtype, c.head_dim_qk, c.head_dim_v);
  if (c.softcap != 0.0f) name += "Capped";
  if (c.num_heads > 1) {
    name += fmt::format("Heads{}To{}InGroupsOf{}", c.first_head, c.first_head + c.num_heads - 1,
                        c.group);
  }
  return name;
}

void PrintTo(const Case& c, std::ostream* out) { *out << name_of(c); }

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

/// The error of the result; empty if it is correct.
std::string find_fault(const AttentionShape& shape, const ExactGradients& exact,
                       const KernelGradients& got) {
  std::string fault = got.stray_write;
  fault += find_excess("dq", exact.dq, got.dq, shape.num_heads, shape.head_dim_qk);
  fault += find_excess("dk", exact.dk, got.dk, shape.num_kv_heads, shape.head_dim_qk);
  fault += find_excess("dv", exact.dv, got.dv, shape.num_kv_heads, shape.head_dim_v);
  return fault;
}

class Gradient : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (const std::string missing = cpscope::tests::missing_device(); !missing.empty())
      GTEST_SKIP() << "requires gpu: " << missing;
  }
};

class Gradients : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string missing = cpscope::tests::missing_device(); !missing.empty())
      GTEST_SKIP() << "requires gpu: " << missing;
  }
};

TEST_P(Gradient, IsThatOfTheDefinition) {
  const GradientProblem problem = problem_of(GetParam());
  const ExactGradients exact = solve(problem);
  EXPECT_EQ(find_fault(problem.shape, exact, run_gradients(kPortable, problem, exact)), "");
}

INSTANTIATE_TEST_SUITE_P(
    EveryInstance, Gradient,
    ::testing::Values(Case{Dtype::bf16, 8, 8}, Case{Dtype::bf16, 40, 40, 20.0f},
                      Case{Dtype::fp16, 64, 64, 0.0f, 3, 2, 1}, Case{Dtype::fp16, 64, 24, 5.0f},
                      Case{Dtype::bf16, 128, 128, 0.0f, 5, 3, 2}, Case{Dtype::fp16, 128, 72, 5.0f},
                      Case{Dtype::bf16, 192, 128}, Case{Dtype::fp16, 192, 128, 20.0f},
                      Case{Dtype::bf16, 256, 256}, Case{Dtype::fp32, 40, 72, 5.0f, 3, 2, 1},
                      Case{Dtype::fp32, 128, 64}, Case{Dtype::fp32, 256, 200, 20.0f},
                      Case{Dtype::fp16, 136, 256, 5.0f, 2, 2, 1}),
    [](const ::testing::TestParamInfo<Case>& one) { return name_of(one.param); });

TEST_F(Gradients, OfRandomBandsAreThoseOfTheDefinition) {
  for (uint32_t seed = 100; seed < 100 + cpscope::tests::sweep(10, 30); ++seed) {
    constexpr Dtype kDtypes[] = {Dtype::bf16, Dtype::fp16, Dtype::fp32};
    const Case one{kDtypes[seed / 2 % 3],
                   seed % 3 == 0 ? 80 : 16,
                   16,
                   0.0f,
                   2,
                   static_cast<int32_t>(seed % 3 + 1),
                   static_cast<int32_t>(seed % 5),
                   static_cast<int32_t>(seed * 37 % 290 + 1),
                   static_cast<int32_t>(seed * 53 % 310 + 1),
                   seed};
    const GradientProblem problem = problem_of(one);
    const ExactGradients exact = solve(problem);
    ASSERT_EQ(find_fault(problem.shape, exact, run_gradients(kPortable, problem, exact)), "")
        << name_of(one) << ", " << one.q_rows << " x " << one.kv_rows << ", seed " << seed;
  }
}

TEST_F(Gradients, OfAnItemWithoutKeysAreZero) {
  GradientProblem problem = make_gradient_problem(shape_of({.q_rows = 70, .kv_rows = 0}), {}, 1);
  const ExactGradients exact = solve(problem);
  const KernelGradients got = run_gradients(kPortable, problem, exact);
  EXPECT_EQ(got.dq, std::vector<float>(problem.q.size(), 0.0f));
}

TEST_F(Gradients, OfKeysThatNoHeadReadsAreZero) {
  // The item has query heads of the second KV head only.
  AttentionShape shape = shape_of({.num_heads = 1, .group = 2, .first_head = 2});
  shape.first_kv_head = 0;
  shape.num_kv_heads = 2;
  const GradientProblem problem =
      make_gradient_problem(shape, random_bands(shape.q_rows, shape.kv_rows, 2), 2);
  const ExactGradients exact = solve(problem);
  EXPECT_EQ(find_fault(shape, exact, run_gradients(kPortable, problem, exact)), "");
}

std::vector<float> all_of(const KernelGradients& got) {
  std::vector<float> all = got.dq;
  all.insert(all.end(), got.dk.begin(), got.dk.end());
  all.insert(all.end(), got.dv.begin(), got.dv.end());
  return all;
}

TEST_F(Gradients, AreTheSameBitsEveryTime) {
  for (const Case& one : {Case{Dtype::bf16, 64, 64, 0.0f, 3, 2, 1}, Case{Dtype::fp16, 128, 128},
                          Case{Dtype::bf16, 256, 256, 5.0f}, Case{Dtype::fp32, 24, 24}}) {
    const GradientProblem problem = problem_of(one);
    const ExactGradients exact = solve(problem);
    std::vector<float> first;
    for (uint64_t seed = 1; seed <= 4; ++seed) {
#ifdef CPSCOPE_EMULATED
      emulator::settings().seed = seed;  // another order of threads, other times of copies
#endif
      const std::vector<float> got = all_of(run_gradients(kPortable, problem, exact));
      if (seed == 1) first = got;
      EXPECT_EQ(std::memcmp(got.data(), first.data(), got.size() * sizeof(float)), 0)
          << name_of(one) << ", seed " << seed;
    }
  }
#ifdef CPSCOPE_EMULATED
  emulator::settings() = {};
#endif
}

#ifdef CPSCOPE_EMULATED

/// Which of the two kernels' results show the planted fault, over several schedules.
struct Caught {
  bool in_queries = false;
  bool in_keys = false;
};

Caught catch_fault(emulator::Fault fault, const GradientProblem& problem,
                   const ExactGradients& exact) {
  const AttentionShape& shape = problem.shape;
  const auto do_nothing = [](const BackwardLaunch&, Stream) {};
  GradientKernels queries = kPortable, keys = kPortable;
  queries.key_gradient = do_nothing;
  keys.query_gradient = do_nothing;
  Caught caught;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    emulator::settings() = {.seed = seed, .fault = fault};
    try {
      const KernelGradients got = run_gradients(queries, problem, exact);
      caught.in_queries |=
          find_excess("dq", exact.dq, got.dq, shape.num_heads, shape.head_dim_qk) != "";
    } catch (const DeviceError&) {
      caught.in_queries = true;
    }
    try {
      const KernelGradients got = run_gradients(keys, problem, exact);
      caught.in_keys |=
          find_excess("dk", exact.dk, got.dk, shape.num_kv_heads, shape.head_dim_qk) != "";
    } catch (const DeviceError&) {
      caught.in_keys = true;
    }
  }
  emulator::settings() = {};
  return caught;
}

TEST(GradientTests, SeeEveryPlantedFaultInBothKernels) {
  const GradientProblem problem = problem_of({.seed = 3});
  const ExactGradients exact = solve(problem);
  using emulator::Fault;
  for (const Fault fault : {Fault::skip_barrier, Fault::skip_copy_wait, Fault::skip_zero_fill,
                            Fault::copy_invalid_rows, Fault::plain_for_transposed}) {
    const Caught caught = catch_fault(fault, problem, exact);
    EXPECT_TRUE(caught.in_queries) << "fault " << static_cast<int>(fault);
    EXPECT_TRUE(caught.in_keys) << "fault " << static_cast<int>(fault);
  }
}

TEST(SoftcapTanh, IsExactToAFewUnits) {
  for (double x = -12.0; x <= 12.0; x += 0.0037) {
    const auto rounded = static_cast<float>(x);
    const device::TanhPoint got = device::tanh_with_slope(rounded);
    const double value = std::tanh(double{rounded}), cosh = std::cosh(double{rounded});
    EXPECT_NEAR(got.value, value, 3e-7 * std::abs(value)) << "x = " << x;
    EXPECT_NEAR(got.slope * cosh * cosh, 1.0, 4e-7 * (1.0 + std::abs(x))) << "x = " << x;
  }
  EXPECT_EQ(device::tanh_with_slope(200.0f).value, 1.0f);
  EXPECT_EQ(device::tanh_with_slope(-200.0f).slope, 0.0f);
}

#endif

}  // namespace
}  // namespace cpscope::kernels
