// The kernels of sm_90a, on the emulator or a Hopper GPU, against the dense references.
#include "kernels/device.h"
#include "kernels/hopper_backward.h"
#include "kernels/hopper_forward.h"
#include "sim/run/dtype.h"
#include "tests/kernels/attention_cases.h"
#include "tests/kernels/attention_device.h"
#include "tests/kernels/gradient_runner.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#ifdef CPSCOPE_EMULATED
#include "kernels/emulator/settings.h"
#endif

namespace cpscope::tests {
namespace {

using kernels::AttentionShape;
using kernels::Generation;

#ifdef CPSCOPE_EMULATED
constexpr uint64_t kCases = 10;  // for each pair of dims
#else
constexpr uint64_t kCases = 200;
#endif

/// Empty, or why no kernel of sm_90a can run here.
std::string missing_hopper() {
  if (std::string missing = missing_device(); !missing.empty()) return missing;
  const int32_t capability = kernels::describe_device(0).compute_capability;
  return capability == 90 ? "" : fmt::format("the device is of generation {}, not 90", capability);
}

/// Another order of threads and other times at which copies land and products are done.
void draw_schedule([[maybe_unused]] uint64_t seed) {
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

class HopperForward : public Hopper {
 protected:
  static void check(const AttentionCase& item, double sharpness = 1.0) {
    ASSERT_EQ(why_not_forward(Generation::sm90, item.shape), "");
    const AttentionInputs inputs = draw_inputs(item, sharpness);
    const ForwardAnswer answer = run_forward(Generation::sm90, item, inputs);
    EXPECT_EQ(judge_forward(item, inputs, answer), "") << describe(item);
  }

  static void check_random(uint64_t first_seed, CaseSpace space) {
    for (uint64_t seed = first_seed; seed < first_seed + kCases && !HasFailure(); ++seed) {
      draw_schedule(seed);
      check(random_case(seed, space));
    }
  }
};

TEST_F(HopperForward, HoldsSmallHeads) {
  check_random(100, {.dims = {{8, 8}, {40, 40}, {64, 64}, {64, 8}, {1, 3}}, .most_rows = 420});
}

TEST_F(HopperForward, HoldsHeadsUpTo128) {
  check_random(200, {.dims = {{80, 80}, {128, 128}, {64, 128}, {100, 36}}, .most_rows = 300});
}

TEST_F(HopperForward, HoldsWideQueriesWithNarrowerValues) {
  check_random(300, {.dims = {{192, 128}, {192, 64}, {136, 128}}, .most_rows = 300});
}

TEST_F(HopperForward, HoldsHeadsUpTo256) {
  check_random(400, {.dims = {{256, 256}, {64, 256}, {200, 144}}, .most_rows = 250});
}

TEST_F(HopperForward, WalksWholeTilesWithoutAMask) {
  check(full_case(Dtype::bf16, 384, 128, 128));
  check(full_case(Dtype::fp16, 384, 64, 64));
  check(causal_case(Dtype::bf16, 520, 128, 128));
}

TEST_F(HopperForward, KeepsItsErrorWhereOneKeyDominates) {
  check(causal_case(Dtype::bf16, 200, 64, 64), 10.0);
  check(causal_case(Dtype::fp16, 200, 128, 128), 10.0);
}

constexpr double kLog2E = 1.4426950408889634;

// Earlier results are made smaller when a weight would be a large part of the sum, not before.
TEST_F(HopperForward, KeepsItsErrorWhereLogitsRiseFromTileToTile) {
  for (const AttentionCase& item :
       {full_case(Dtype::bf16, 320, 64, 64), full_case(Dtype::fp16, 320, 64, 64),
        causal_case(Dtype::bf16, 320, 128, 128), full_case(Dtype::bf16, 320, 192, 128),
        full_case(Dtype::fp16, 320, 256, 256)}) {
    for (const double powers_of_two : {0.2, 1.5, 8.5, 40.0, -40.0}) {
      AttentionInputs inputs = draw_inputs(item);
      constexpr double kQuery = 4.0;
      const double step = powers_of_two / (kQuery * item.shape.scale * kLog2E);
      for (int32_t q = 0; q < item.shape.q_rows; ++q) inputs.q.at(q, 0)[0] = kQuery;
      for (int32_t k = 0; k < item.shape.kv_rows; ++k)
        inputs.k.at(k, 0)[0] = round_to(item.shape.dtype, step * (k / 64));
      EXPECT_EQ(judge_forward(item, inputs, run_forward(Generation::sm90, item, inputs)), "")
          << describe(item) << powers_of_two << " powers of two every 64 keys";
    }
  }
}

// Rows 0 to 63 see nothing for a while, and then first a single key far above all before; the next
// one outweighs it, and its weight must not be rounded.
TEST_F(HopperForward, KeepsItsErrorWhereRowsSkipKeysBeforeALogitOutgrowsAll) {
  AttentionCase item = full_case(Dtype::bf16, 768, 128, 128);
  item.shape.q_rows = 128;
  item.shape.num_heads = item.shape.group = 2;
  item.shape.keys_per_row = 50;
  ASSERT_EQ(forward_tile_shape(Generation::sm90, item.shape).heads, 2);  // limits rise late there
  const int32_t all = 1000;
  item.slices = {
      {0, 64, 0, 256, -all, all}, {0, 64, 575, 768, -all, all}, {64, 128, 0, 768, -all, all}};
  AttentionInputs inputs = draw_inputs(item);
  const auto set_logit = [&](int32_t key, double power_of_two) {
    double* k = inputs.k.at(key, 0);
    std::fill_n(k, 128, 0.0);
    k[0] = round_to(Dtype::bf16, power_of_two / (4.0 * item.shape.scale * kLog2E));
  };
  for (int32_t q = 0; q < 128; ++q) {
    for (int32_t head = 0; head < 2; ++head) {
      std::fill_n(inputs.q.at(q, head), 128, 0.0);
      inputs.q.at(q, head)[0] = 4.0;
    }
  }
  for (int32_t k = 0; k < 768; ++k) set_logit(k, k < 100 ? 0.0 : (k < 256 ? 1.0 : 20.0));
  set_logit(575, 40.0);
  for (const double power_of_two : {41.3, 41.6, 41.8, 42.1, 42.3, 42.6, 42.8}) {
    set_logit(700, power_of_two);
    EXPECT_EQ(judge_forward(item, inputs, run_forward(Generation::sm90, item, inputs)), "")
        << power_of_two;
  }
}

TEST_F(HopperForward, KeepsItsErrorOverHundredsOfTiles) {
  check(scattered_case(Dtype::bf16, 400, 64), 3.0);
}

/// Causal documents, of `heads` query heads from `first_head` on, `group` of them for a kv head.
AttentionCase documents_case(const std::vector<int32_t>& lengths, int32_t group, int32_t first_head,
                             int32_t heads, int32_t head_dim) {
  AttentionCase item = full_case(Dtype::bf16, 0, head_dim, head_dim);
  item.slices.clear();
  int32_t row = 0;
  for (const int32_t length : lengths) {
    item.slices.push_back({row, row + length, row, row + length, -length, 0});
    row += length;
  }
  AttentionShape& shape = item.shape;
  shape.q_rows = shape.kv_rows = row;
  shape.group = group;
  shape.first_head = first_head;
  shape.num_heads = heads;
  shape.first_kv_head = first_head / group;
  shape.num_kv_heads = (first_head + heads - 1) / group - shape.first_kv_head + 1;
  shape.keys_per_row = 30;
  return item;
}

TEST_F(HopperForward, TakesTallTilesOfLongDocumentsWhereRowsSeeManyKeys) {
  for (const int32_t head_dim_qk : {128, 192}) {
    AttentionCase item = documents_case({530, 40, 576, 7}, 1, 0, 1, 128);
    item.shape.head_dim_qk = head_dim_qk;
    item.shape.keys_per_row = 100'000;
    EXPECT_EQ(forward_tile_shape(Generation::sm90, item.shape).owned_rows, 192);
    check(item);
    item.shape.softcap = 1.5f;
    EXPECT_EQ(forward_tile_shape(Generation::sm90, item.shape).owned_rows, 128);
  }
}

TEST_F(HopperForward, TakesQueryHeadsOfAKvHeadSideBySideWhereRowsSeeFewKeys) {
  struct Heads {
    int32_t group, first, count, in_tile;
  };
  for (const Heads& heads :
       {Heads{1, 2, 3, 1}, Heads{2, 4, 2, 2}, Heads{4, 4, 8, 4}, Heads{6, 0, 6, 2},
        Heads{8, 8, 8, 8}, Heads{16, 0, 16, 8}, Heads{4, 2, 6, 2}, Heads{4, 0, 3, 1}}) {
    for (const int32_t head_dim : {64, 128}) {
      AttentionCase item = documents_case({40, 17, 3, 90, 33, 61, 1, 128, 20}, heads.group,
                                          heads.first, heads.count, head_dim);
      const kernels::TileShape shape = forward_tile_shape(Generation::sm90, item.shape);
      EXPECT_EQ(shape.heads, heads.in_tile);
      // With 128 lanes short tiles are for heads side by side only.
      EXPECT_EQ(shape.heads * shape.owned_rows, head_dim == 128 && shape.heads == 1 ? 128 : 64);
      check(item);
      item.shape.keys_per_row = 0;
      EXPECT_EQ(forward_tile_shape(Generation::sm90, item.shape).heads, 1);
    }
  }
}

TEST_F(HopperForward, KeepsTheNanOfOneOfTheHeadsInATile) {
  const AttentionCase item = documents_case({40, 50, 30}, 4, 0, 8, 128);
  AttentionInputs inputs = draw_inputs(item);
  inputs.q.at(45, 5)[7] = std::numeric_limits<double>::quiet_NaN();
  const ForwardAnswer answer = run_forward(Generation::sm90, item, inputs);
  for (int32_t head = 0; head < 8; ++head) {
    EXPECT_EQ(std::isnan(answer.max_logit[static_cast<size_t>(head)]), head == 5) << head;
    for (int32_t q = 0; q < item.shape.q_rows; ++q)
      EXPECT_EQ(std::isnan(answer.out.at(q, head)[0]), head == 5 && q == 45) << q << ", " << head;
  }
}

TEST_F(HopperForward, RefusesWhatItCannotCompute) {
  AttentionShape shape = causal_case(Dtype::bf16, 10, 64, 64).shape;
  EXPECT_EQ(why_not_forward(Generation::sm90, shape), "");
  shape.scale = -0.25f;
  EXPECT_NE(why_not_forward(Generation::sm90, shape), "");
  shape.softcap = 2.0f;
  EXPECT_EQ(why_not_forward(Generation::sm90, shape), "");
  shape.dtype = Dtype::fp32;
  EXPECT_NE(why_not_forward(Generation::sm90, shape), "");
  EXPECT_NE(why_not_backward(Generation::sm90, shape), "");
  shape.dtype = Dtype::fp16;
  EXPECT_EQ(why_not_backward(Generation::sm90, shape), "");
  shape.head_dim_qk = 257;
  EXPECT_NE(why_not_forward(Generation::sm90, shape), "");
  EXPECT_NE(why_not_backward(Generation::sm90, shape), "");
}

TEST_F(HopperForward, TakesAnyScaleUnderACap) {
  AttentionCase item = causal_case(Dtype::bf16, 150, 40, 40);
  item.shape.scale = -0.25f;
  item.shape.softcap = 2.0f;
  check(item);
}

TEST_F(HopperForward, WritesRowsWithoutRuns) {
  AttentionCase item = full_case(Dtype::bf16, 300, 64, 64);
  item.slices = {{250, 260, 20, 30, -300, 300}};
  check(item);
  item.slices.clear();
  check(item);
  item.shape.kv_rows = 0;
  check(item);
}

TEST_F(HopperForward, KeepsTheNanOfWhatItSees) {
  const AttentionCase item = causal_case(Dtype::bf16, 150, 64, 64);
  AttentionInputs inputs = draw_inputs(item);
  inputs.k.at(50, 0)[7] = std::numeric_limits<double>::quiet_NaN();
  const ForwardAnswer answer = run_forward(Generation::sm90, item, inputs);
  for (int32_t q = 0; q < item.shape.q_rows; ++q) {
    EXPECT_EQ(std::isnan(answer.out.at(q, 0)[0]), q >= 50) << "row " << q;
    EXPECT_EQ(std::isnan(answer.lse[static_cast<size_t>(q)]), q >= 50) << "row " << q;
  }
  EXPECT_TRUE(std::isnan(answer.max_logit[0]));
}

// The bits are those of a rounding afterwards.
TEST_F(HopperForward, WritesTheDtypeWhereItIsAskedTo) {
  const std::vector<CaseSpace> spaces = {{.dims = {{64, 64}, {40, 24}}, .most_rows = 200},
                                         {.dims = {{128, 128}, {100, 36}}, .most_rows = 200},
                                         {.dims = {{192, 128}}, .most_rows = 150},
                                         {.dims = {{256, 256}}, .most_rows = 150}};
  for (uint64_t seed = 800; seed < 816; ++seed) {
    const AttentionCase item = random_case(seed, spaces[seed % spaces.size()]);
    const AttentionInputs inputs = draw_inputs(item);
    const kernels::TileList tiles =
        query_tiles(item, forward_tile_shape(Generation::sm90, item.shape));
    const ForwardAnswer wide = run_forward(Generation::sm90, item, inputs, tiles);
    const ForwardAnswer narrow = run_forward(Generation::sm90, item, inputs, tiles, true);
    EXPECT_EQ(narrow.lse, wide.lse);
    EXPECT_EQ(find_other_bits(item, narrow, wide), "") << describe(item);
  }
}

// Two steps of a ring. What the kernel merges has the bits of a pass over memory that merges.
TEST_F(HopperForward, MergesWithWhatStandsThereWhereItIsAskedTo) {
  const std::vector<CaseSpace> spaces = {{.dims = {{64, 64}, {40, 24}}, .most_rows = 200},
                                         {.dims = {{128, 128}, {100, 36}}, .most_rows = 300},
                                         {.dims = {{192, 128}}, .most_rows = 200},
                                         {.dims = {{256, 256}}, .most_rows = 150}};
  int32_t empty_rows = 0;
  for (uint64_t seed = 900; seed < 900 + 2 * kCases; ++seed) {
    draw_schedule(seed);
    const AttentionCase item = random_case(seed, spaces[seed % spaces.size()]);
    const int32_t middle = item.shape.kv_rows / 2;
    const AttentionCase before = keys_before(item, middle), after = keys_from(item, middle);
    const AttentionInputs inputs = draw_inputs(item);
    for (int32_t q = 0; q < item.shape.q_rows; ++q)
      empty_rows += before.query_sees_any(q) && !after.query_sees_any(q) ? 1 : 0;
    const ForwardAnswer by_kernel = run_forward_in_two(before, after, inputs, true, false);
    EXPECT_EQ(judge_forward(item, inputs, by_kernel), "") << describe(item);
    for (const bool rounds : {false, true}) {
      const ForwardAnswer got = run_forward_in_two(before, after, inputs, true, rounds);
      const ForwardAnswer wanted = run_forward_in_two(before, after, inputs, false, rounds);
      EXPECT_EQ(got.lse, wanted.lse) << describe(item);
      EXPECT_EQ(got.max_logit, wanted.max_logit) << describe(item);
      EXPECT_EQ(got.out.values, wanted.out.values) << describe(item);
    }
  }
  EXPECT_GT(empty_rows, 100) << "rows that see nothing of the second half keep what they have";
}

// Documents of few tokens: several heads in a tile, whose rows lie apart.
TEST_F(HopperForward, MergesHeadsThatLieSideBySide) {
  const AttentionCase item = documents_case({40, 17, 3, 90, 33, 61, 1, 128, 20}, 4, 4, 8, 128);
  const AttentionCase before = keys_before(item, 150), after = keys_from(item, 150);
  const AttentionInputs inputs = draw_inputs(item);
  ASSERT_EQ(forward_tile_shape(Generation::sm90, after.shape).heads, 4);
  const ForwardAnswer got = run_forward_in_two(before, after, inputs, true, false);
  EXPECT_EQ(judge_forward(item, inputs, got), "") << describe(item);
  const ForwardAnswer wanted = run_forward_in_two(before, after, inputs, false, false);
  EXPECT_EQ(got.lse, wanted.lse);
  EXPECT_EQ(got.out.values, wanted.out.values);
}

TEST_F(HopperForward, GivesTheSameBitsInAnyOrderOfThreads) {
  const AttentionCase item = random_case(500, {.dims = {{128, 128}}, .most_rows = 300});
  const AttentionInputs inputs = draw_inputs(item);
  const ForwardAnswer first = run_forward(Generation::sm90, item, inputs);
  for (uint64_t seed = 2; seed < 5; ++seed) {
    draw_schedule(seed);
    const ForwardAnswer again = run_forward(Generation::sm90, item, inputs);
    EXPECT_EQ(again.out.values, first.out.values);
    EXPECT_EQ(again.lse, first.lse);
    EXPECT_EQ(again.max_logit, first.max_logit);
  }
}

const kernels::GradientKernels kHopper = kernels::hopper_gradient_kernels();
const kernels::GradientKernels kHopperByTile = kernels::hopper_gradient_kernels(true);

/// Heads of a group are walked one after the other, or side by side.
const kernels::GradientKernels& hopper_for(uint64_t seed) {
  return seed % 2 == 0 ? kHopper : kHopperByTile;
}

kernels::GradientProblem problem_of(const AttentionCase& item) {
  return make_gradient_problem(item.shape, item.slices, static_cast<uint32_t>(item.seed));
}

class HopperGradients : public Hopper {
 protected:
  static void check(const AttentionCase& item) {
    const AttentionShape& shape = item.shape;
    ASSERT_EQ(why_not_backward(Generation::sm90, shape), "");
    const kernels::GradientProblem problem = problem_of(item);
    const kernels::ExactGradients exact = solve(problem);
    const kernels::KernelGradients got = run_gradients(kHopper, problem, exact);
    expect_exact(item, exact, got);
    if (shape.group == 1 || !is_backward_fused(Generation::sm90, shape)) return;
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

// The bits are those of a rounding afterwards; rows that nobody sees are zeros all the same.
TEST_F(HopperGradients, WriteTheDtypeWhereTheyAreAskedToOfAllRowsOrSome) {
  const std::vector<CaseSpace> spaces = {{.dims = {{64, 64}, {40, 24}}, .most_rows = 260},
                                         {.dims = {{128, 128}, {100, 36}}, .most_rows = 260}};
  for (uint64_t seed = 700; seed < 712 && !HasFailure(); ++seed) {
    AttentionCase item = random_case(seed, spaces[seed % spaces.size()]);
    item.slices =
        kernels::random_bands(item.shape.q_rows, item.shape.kv_rows, static_cast<uint32_t>(seed));
    const kernels::GradientKernels& hopper = hopper_for(seed);
    const kernels::GradientProblem problem = problem_of(item);
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
    // Rows that nobody wants so stay as they were.
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

// A later step of a ring: rows that see none of its keys keep what they have.
TEST_F(HopperGradients, AddToDqWhereTheyAreAskedTo) {
  const std::vector<CaseSpace> spaces = {{.dims = {{64, 64}, {40, 24}}, .most_rows = 260},
                                         {.dims = {{128, 128}, {100, 36}}, .most_rows = 260}};
  int32_t kept = 0;
  for (uint64_t seed = 720; seed < 732 && !HasFailure(); ++seed) {
    draw_schedule(seed);
    AttentionCase item = random_case(seed, spaces[seed % spaces.size()]);
    const AttentionShape& shape = item.shape;
    item.slices = kernels::random_bands(shape.q_rows, shape.kv_rows, static_cast<uint32_t>(seed));
    const kernels::GradientKernels& hopper = hopper_for(seed);
    const kernels::GradientProblem problem = problem_of(item);
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

// Products take lse off before the scale is there.
TEST_F(HopperGradients, TakeAnyScale) {
  for (const float scale : {-0.25f, 3.0f, 1e-6f, 1e-30f}) {
    for (const int32_t lanes : {64, 128}) {
      AttentionCase item = causal_case(Dtype::bf16, 200, lanes, lanes);
      item.shape.scale = scale;
      check(item);
      item.shape.dtype = Dtype::fp16;
      check(item);
    }
  }
}

// One over it is not an fp32 number; of dq and dk nothing is left.
TEST_F(HopperGradients, WeighByTheSmallestScale) {
  for (const int32_t lanes : {64, 128}) {
    AttentionCase item = causal_case(Dtype::bf16, 200, lanes, lanes);
    item.shape.scale = 1e-40f;
    const kernels::GradientProblem problem = problem_of(item);
    const kernels::ExactGradients exact = solve(problem);
    const kernels::KernelGradients got = run_gradients(kHopper, problem, exact);
    EXPECT_EQ(find_excess("dv", exact.dv, got.dv, item.shape.num_kv_heads, lanes), "");
  }
}

// dk is another matter: the row's own numbers reach all keys of a tile, times zeros.
TEST_F(HopperGradients, KeepARowsNanFromOtherRows) {
  constexpr int32_t kRow = 50;
  for (const int32_t lanes : {64, 128}) {
    const AttentionCase item = causal_case(Dtype::bf16, 200, lanes, lanes);
    kernels::GradientProblem problem = problem_of(item);
    const kernels::ExactGradients exact = solve(problem);
    problem.log2_lse[kRow] = problem.delta[kRow] = std::numeric_limits<double>::quiet_NaN();
    const kernels::KernelGradients got = run_gradients(kHopper, problem, exact);
    for (int32_t row = 0; row < item.shape.q_rows; ++row) {
      const auto at = static_cast<size_t>(row * lanes);
      EXPECT_EQ(std::isnan(got.dq[at]), row == kRow) << lanes << " lanes, query row " << row;
      EXPECT_EQ(std::isnan(got.dv[at]), row <= kRow) << lanes << " lanes, key row " << row;
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
    // Of two kv heads the item's query heads read the second only.
    item = causal_case(Dtype::bf16, 150, lanes, 64);
    item.shape.group = 2;
    item.shape.first_head = 2;
    item.shape.first_kv_head = 0;
    item.shape.num_kv_heads = 2;
    check(item);
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
    const kernels::GradientProblem problem = problem_of(item);
    const kernels::ExactGradients exact = solve(problem);
    for (const kernels::GradientKernels* hopper : {&kHopper, &kHopperByTile}) {
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
