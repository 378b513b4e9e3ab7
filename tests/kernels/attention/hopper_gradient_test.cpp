// The gradients of sm_90a, on the emulator or a Hopper GPU, against the dense reference.
#include "kernels/hopper/hopper_backward.h"
#include "sim/run/dtype.h"
#include "tests/kernels/attention/gradient_runner.h"
#include "tests/kernels/attention/hopper_cases.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using kernels::AttentionShape;
using kernels::Generation;

const kernels::GradientKernels kHopper = kernels::hopper_gradient_kernels();
const kernels::GradientKernels kHopperByTile = kernels::hopper_gradient_kernels(true);

const kernels::GradientKernels kHopperInParts[] = {kernels::hopper_gradient_kernels(true, 2),
                                                   kernels::hopper_gradient_kernels(false, 12)};

/// Of q and k, and of v, that the fused kernel has an instance for.
constexpr std::pair<int32_t, int32_t> kFusedDims[] = {{64, 64}, {128, 128}, {192, 128}};

/// Heads of a group are taken one after another, or tile by tile for all heads; or the group is in
/// parts.
const kernels::GradientKernels& hopper_for(uint64_t seed) {
  if (seed % 2 == 0) return seed % 4 == 0 ? kHopper : kHopperByTile;
  return kHopperInParts[seed / 2 % 2];
}

kernels::GradientProblem gradient_problem_of(const AttentionCase& item) {
  return make_gradient_problem(item.shape, item.slices, static_cast<uint32_t>(item.seed),
                               item.alibi);
}

class HopperGradients : public Hopper {
 protected:
  static void check(const AttentionCase& item) {
    const AttentionShape& shape = item.shape;
    ASSERT_EQ(why_not_backward(Generation::sm90, shape), "");
    const kernels::GradientProblem problem = gradient_problem_of(item);
    const kernels::ExactGradients exact = solve(problem);
    const kernels::KernelGradients got = run_gradients(kHopper, problem, exact);
    expect_exact(item, exact, got);
    if (shape.group == 1) return;
    expect_exact(item, exact, run_gradients(kHopperInParts[item.seed % 2], problem, exact));
    if (!is_backward_fused(Generation::sm90, shape)) return;
    const kernels::KernelGradients by_tile = run_gradients(kHopperByTile, problem, exact);
    expect_exact(item, exact, by_tile);
    EXPECT_EQ(by_tile.dq, got.dq) << describe(item);  // turns are the same
  }

  static void expect_exact(const AttentionCase& item, const kernels::ExactGradients& exact,
                           const kernels::KernelGradients& got) {
    const AttentionShape& shape = item.shape;
    EXPECT_EQ(got.stray_write, "");
    EXPECT_EQ(find_excess("dq", exact.dq, got.dq, shape.num_heads, shape.head_dim_qk), "")
        << describe(item);
    EXPECT_EQ(find_excess("dk", exact.dk, got.dk, shape.num_kv_heads, shape.head_dim_qk), "")
        << describe(item);
    EXPECT_EQ(find_excess("dv", exact.dv, got.dv, shape.num_kv_heads, shape.head_dim_v), "")
        << describe(item);
  }

  static void check_random(uint64_t first_seed, CaseSpace space) {
    for (uint64_t seed = first_seed; seed < first_seed + kCases && !HasFailure(); ++seed) {
      draw_schedule(seed);
      AttentionCase item = random_case(seed, space);
      item.slices =
          kernels::random_bands(item.shape.q_rows, item.shape.kv_rows, static_cast<uint32_t>(seed));
      check(item);
    }
  }
};

TEST_F(HopperGradients, HoldSmallHeads) {
  check_random(100, {.dims = {{8, 8}, {40, 40}, {64, 64}, {64, 8}, {1, 3}}, .most_rows = 300});
}

TEST_F(HopperGradients, HoldHeadsUpTo128) {
  check_random(200, {.dims = {{80, 80}, {128, 128}, {64, 128}, {100, 36}}, .most_rows = 260});
}

TEST_F(HopperGradients, HoldWideQueriesWithNarrowerValues) {
  check_random(300, {.dims = {{192, 128}, {192, 64}, {136, 128}, {132, 3}}, .most_rows = 260});
}

TEST_F(HopperGradients, HoldHeadsUpTo256) {
  check_random(400, {.dims = {{256, 256}, {64, 256}, {200, 144}, {256, 8}}, .most_rows = 220});
}

// The bits equal those of a later rounding; rows that no query sees are zeros too.
TEST_F(HopperGradients, WriteTheDtypeWhereTheyAreAskedToOfAllRowsOrSome) {
  const std::vector<CaseSpace> spaces = {
      {.dims = {{64, 64}, {40, 24}}, .most_rows = 260},
      {.dims = {{128, 128}, {100, 36}}, .most_rows = 260},
      {.dims = {{192, 128}, {136, 40}}, .most_rows = 260, .share_softcap = 0.0}};
  for (uint64_t seed = 700; seed < 712 && !HasFailure(); ++seed) {
    AttentionCase item = random_case(seed, spaces[seed % spaces.size()]);
    item.slices =
        kernels::random_bands(item.shape.q_rows, item.shape.kv_rows, static_cast<uint32_t>(seed));
    const kernels::GradientKernels& hopper = hopper_for(seed);
    const kernels::GradientProblem problem = gradient_problem_of(item);
    const kernels::ExactGradients exact = solve(problem);
    const kernels::KernelGradients wide = run_gradients(hopper, problem, exact);
    const kernels::KernelGradients narrow =
        run_gradients(hopper, problem, exact, kernels::Written::dtype);
    const kernels::KernelGradients mixed =
        run_gradients(hopper, problem, exact, kernels::Written::mixed);
    EXPECT_EQ(narrow.stray_write, "");
    EXPECT_EQ(mixed.stray_write, "");
    EXPECT_EQ(mixed.dq, wide.dq) << describe(item);
    const auto expect_rounded = [&](const char* what, const std::vector<float>& found,
                                    const std::vector<float>& exactly) {
      ASSERT_EQ(found.size(), exactly.size());
      for (size_t i = 0; i < found.size(); ++i)
        ASSERT_EQ(found[i], round_to(item.shape.dtype, exactly[i]))
            << describe(item) << ", " << what << ", element " << i;
    };
    ASSERT_NO_FATAL_FAILURE(expect_rounded("dq", narrow.dq, wide.dq));
    ASSERT_NO_FATAL_FAILURE(expect_rounded("dk", narrow.dk, wide.dk));
    ASSERT_NO_FATAL_FAILURE(expect_rounded("dv", narrow.dv, wide.dv));
    // Rows that are not written in this form keep their content.
    const auto expect_mixed = [&](const char* what, const std::vector<float>& stays,
                                  const std::vector<float>& leaves,
                                  const std::vector<float>& exactly) {
      ASSERT_EQ(stays.size(), exactly.size());
      ASSERT_EQ(leaves.size(), exactly.size());
      const size_t row_lanes = exactly.size() / static_cast<size_t>(item.shape.kv_rows);
      for (size_t i = 0; i < exactly.size(); ++i) {
        const uint8_t use = kernels::wire_use(static_cast<int64_t>(i / row_lanes));
        const auto expect = [&](const char* form, bool is_wanted, float found, float wanted) {
          ASSERT_TRUE(is_wanted ? found == wanted : std::isnan(found))
              << describe(item) << ", " << what << form << ", element " << i << ": " << found
              << (is_wanted ? " instead of " : " though nobody wants ") << wanted;
        };
        expect(" in fp32", (use & kernels::WireRows::kStays) != 0, stays[i], exactly[i]);
        expect(" in the dtype", (use & kernels::WireRows::kLeaves) != 0, leaves[i],
               static_cast<float>(round_to(item.shape.dtype, exactly[i])));
      }
    };
    ASSERT_NO_FATAL_FAILURE(expect_mixed("dk", mixed.dk, mixed.wire_dk, wide.dk));
    ASSERT_NO_FATAL_FAILURE(expect_mixed("dv", mixed.dv, mixed.wire_dv, wide.dv));
  }
}

// A later step of a ring: rows that see none of its keys keep their dq.
TEST_F(HopperGradients, AddToDqWhereTheyAreAskedTo) {
  const std::vector<CaseSpace> spaces = {
      {.dims = {{64, 64}, {40, 24}}, .most_rows = 260},
      {.dims = {{128, 128}, {100, 36}}, .most_rows = 260},
      {.dims = {{192, 128}, {136, 40}}, .most_rows = 260, .share_softcap = 0.0}};
  int32_t kept = 0;
  for (uint64_t seed = 720; seed < 732 && !HasFailure(); ++seed) {
    draw_schedule(seed);
    AttentionCase item = random_case(seed, spaces[seed % spaces.size()]);
    const AttentionShape& shape = item.shape;
    item.slices = kernels::random_bands(shape.q_rows, shape.kv_rows, static_cast<uint32_t>(seed));
    const kernels::GradientKernels& hopper = hopper_for(seed);
    const kernels::GradientProblem problem = gradient_problem_of(item);
    const kernels::ExactGradients exact = solve(problem);
    std::vector<double> before;
    kernels::ExactGradient sum = exact.dq;
    for (size_t i = 0; i < sum.value.size(); ++i) {
      before.push_back(static_cast<double>(i % 127) / 64.0 - 1.0);
      sum.value[i] += before[i];
      kept += sum.budget[i] == 0.0 ? 1 : 0;
      if (sum.budget[i] > 0.0) sum.budget[i] += 1e-6;  // fp32 sums around 1
    }
    const kernels::KernelGradients got =
        run_gradients(hopper, problem, exact, kernels::Written::fp32, before);
    EXPECT_EQ(got.stray_write, "");
    EXPECT_EQ(find_excess("dq", sum, got.dq, shape.num_heads, shape.head_dim_qk), "")
        << describe(item);
    const kernels::KernelGradients alone = run_gradients(hopper, problem, exact);
    EXPECT_EQ(got.dk, alone.dk);
    EXPECT_EQ(got.dv, alone.dv);
  }
  EXPECT_GT(kept, 1000);
}

TEST_F(HopperGradients, WalkWholeTilesWithoutAMask) {
  check(full_case(Dtype::bf16, 320, 192, 128));
  check(full_case(Dtype::fp16, 256, 256, 256));
  check(full_case(Dtype::bf16, 256, 128, 128));
  check(causal_case(Dtype::fp16, 320, 64, 64));
  check(full_case(Dtype::bf16, 300, 64, 64));
}

TEST_F(HopperGradients, TakeACapAtEveryWidth) {
  for (const auto& [dtype, lanes_qk, lanes_v] :
       {std::tuple{Dtype::fp16, 64, 64}, std::tuple{Dtype::bf16, 128, 128},
        std::tuple{Dtype::bf16, 192, 128}, std::tuple{Dtype::fp16, 256, 256}}) {
    AttentionCase item = causal_case(dtype, 150, lanes_qk, lanes_v);
    item.shape.softcap = 1.5f;
    item.shape.num_heads = item.shape.group = 2;
    check(item);
  }
}

TEST_F(HopperGradients, AddAlibiAtEveryWidth) {
  check_random(1400, {.dims = {{64, 64}, {40, 24}}, .most_rows = 300, .share_alibi = 1.0});
  check_random(1500, {.dims = {{128, 128}, {100, 36}}, .most_rows = 260, .share_alibi = 1.0});
  check_random(1600, {.dims = {{192, 128}, {132, 3}}, .most_rows = 260, .share_alibi = 1.0});
  check_random(1700, {.dims = {{256, 256}, {200, 144}}, .most_rows = 220, .share_alibi = 1.0});
}

// Products subtract lse before the scale is applied.
TEST_F(HopperGradients, TakeAnyScale) {
  for (const float scale : {-0.25f, 3.0f, 1e-6f, 1e-30f}) {
    for (const auto& [lanes_qk, lanes_v] : kFusedDims) {
      AttentionCase item = causal_case(Dtype::bf16, 200, lanes_qk, lanes_v);
      item.shape.scale = scale;
      check(item);
      item.shape.dtype = Dtype::fp16;
      check(item);
    }
  }
}

// The reciprocal of the scale is not an fp32 number; dq and dk become zero.
TEST_F(HopperGradients, WeighByTheSmallestScale) {
  for (const auto& [lanes_qk, lanes_v] : kFusedDims) {
    AttentionCase item = causal_case(Dtype::bf16, 200, lanes_qk, lanes_v);
    item.shape.scale = 1e-40f;
    const kernels::GradientProblem problem = gradient_problem_of(item);
    const kernels::ExactGradients exact = solve(problem);
    const kernels::KernelGradients got = run_gradients(kHopper, problem, exact);
    EXPECT_EQ(find_excess("dv", exact.dv, got.dv, item.shape.num_kv_heads, lanes_v), "");
  }
}

// dk is different: the row's own numbers reach all keys of a tile, times zeros.
TEST_F(HopperGradients, KeepARowsNanFromOtherRows) {
  constexpr int32_t kRow = 50;
  for (const auto& [lanes_qk, lanes_v] : kFusedDims) {
    const AttentionCase item = causal_case(Dtype::bf16, 200, lanes_qk, lanes_v);
    kernels::GradientProblem problem = gradient_problem_of(item);
    const kernels::ExactGradients exact = solve(problem);
    problem.log2_lse[kRow] = problem.delta[kRow] = std::numeric_limits<double>::quiet_NaN();
    const kernels::KernelGradients got = run_gradients(kHopper, problem, exact);
    for (int32_t row = 0; row < item.shape.q_rows; ++row) {
      const auto q_at = static_cast<size_t>(row * lanes_qk);
      const auto v_at = static_cast<size_t>(row * lanes_v);
      EXPECT_EQ(std::isnan(got.dq[q_at]), row == kRow) << lanes_qk << " lanes, query row " << row;
      EXPECT_EQ(std::isnan(got.dv[v_at]), row <= kRow) << lanes_v << " lanes, key row " << row;
    }
  }
}

TEST_F(HopperGradients, AreZeroWithoutKeysOrReaders) {
  for (const int32_t lanes : {64, 128, 192, 256}) {
    AttentionCase item = full_case(Dtype::bf16, 150, lanes, 64);
    item.slices.clear();
    check(item);
    item.shape.kv_rows = 0;
    check(item);
    // Of two KV heads the item's query heads read only the second.
    item = causal_case(Dtype::bf16, 150, lanes, 64);
    item.shape.group = 2;
    item.shape.first_head = 2;
    item.shape.first_kv_head = 0;
    item.shape.num_kv_heads = 2;
    check(item);
  }
}

TEST_F(HopperGradients, AddUpAsManyPartsAsAGroupHasHeads) {
  for (const int32_t group : {5, 8}) {
    AttentionCase item = causal_case(Dtype::bf16, 100, 64, 64);
    item.shape.num_heads = item.shape.group = group;
    const kernels::GradientProblem problem = gradient_problem_of(item);
    const kernels::ExactGradients exact = solve(problem);
    expect_exact(item, exact,
                 run_gradients(kernels::hopper_gradient_kernels(true, group), problem, exact));
  }
}

TEST_F(HopperGradients, GiveTheSameBitsInAnyOrderOfThreads) {
  const auto is_same = [](const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  };
  for (const auto& dims :
       {std::pair{64, 64}, std::pair{128, 128}, std::pair{192, 128}, std::pair{256, 256}}) {
    AttentionCase item = random_case(501, {.dims = {dims}, .most_rows = 260});
    item.slices = kernels::random_bands(item.shape.q_rows, item.shape.kv_rows, 501);
    const kernels::GradientProblem problem = gradient_problem_of(item);
    const kernels::ExactGradients exact = solve(problem);
    for (const kernels::GradientKernels* hopper : {&kHopper, &kHopperByTile, &kHopperInParts[0]}) {
      const kernels::KernelGradients first = run_gradients(*hopper, problem, exact);
      for (uint64_t seed = 2; seed < 5; ++seed) {
        draw_schedule(seed);
        const kernels::KernelGradients again = run_gradients(*hopper, problem, exact);
        EXPECT_TRUE(is_same(again.dq, first.dq)) << dims.first << " lanes, seed " << seed;
        EXPECT_TRUE(is_same(again.dk, first.dk)) << dims.first << " lanes, seed " << seed;
        EXPECT_TRUE(is_same(again.dv, first.dv)) << dims.first << " lanes, seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace cpscope::tests
