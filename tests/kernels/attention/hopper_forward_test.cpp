// The forward of sm_90a, on the emulator or a Hopper GPU, against the dense reference.
#include "kernels/hopper/hopper_forward.h"

#include "sim/run/dtype.h"
#include "tests/kernels/attention/hopper_cases.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using kernels::AttentionShape;
using kernels::Generation;

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

TEST_F(HopperForward, AddsAlibiAtEveryWidth) {
  check_random(1400, {.dims = {{64, 64}, {40, 24}}, .most_rows = 420, .share_alibi = 1.0});
  check_random(1500, {.dims = {{128, 128}, {100, 36}}, .most_rows = 300, .share_alibi = 1.0});
  check_random(1600, {.dims = {{192, 128}, {136, 128}}, .most_rows = 300, .share_alibi = 1.0});
  check_random(1700, {.dims = {{256, 256}, {200, 144}}, .most_rows = 250, .share_alibi = 1.0});
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

// Earlier results are rescaled only when a weight would be a large part of the sum.
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

// Rows 0 to 63 first see no key, and then a single key with a logit far above all before. The next
// key outweighs it, and its weight must not be rounded.
TEST_F(HopperForward, KeepsItsErrorWhereRowsSkipKeysBeforeALogitOutgrowsAll) {
  AttentionCase item = full_case(Dtype::bf16, 768, 128, 128);
  item.shape.q_rows = 128;
  item.shape.num_heads = item.shape.group = 2;
  item.shape.keys_per_row = 50;
  ASSERT_EQ(forward_tile_shape(Generation::sm90, item.shape).heads, 2);  // here limits rise late
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

/// Causal documents, with `heads` query heads from `first_head` on, `group` of them for a KV head.
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
      // At head_dim 128 short tiles are used only with several heads in a tile.
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

TEST_F(HopperForward, LeavesOtherTermsThanAlibiToThePortableKernels) {
  AttentionCase item = causal_case(Dtype::bf16, 10, 64, 64);
  add_alibi(item);
  EXPECT_EQ(why_not_forward(Generation::sm90, item.shape), "");
  EXPECT_EQ(why_not_backward(Generation::sm90, item.shape), "");
  const auto expect_refusal = [&](const char* part, auto change) {
    AttentionShape shape = item.shape;
    change(shape);
    for (const std::string& reason :
         {why_not_forward(Generation::sm90, shape), why_not_backward(Generation::sm90, shape)})
      EXPECT_NE(reason.find(part), std::string::npos) << reason;
    EXPECT_EQ(why_not_forward(Generation::portable, shape), "");
  };
  expect_refusal("bias", [](AttentionShape& shape) { shape.has_alibi_alone = false; });
  expect_refusal("softcap", [](AttentionShape& shape) { shape.softcap = 2.0f; });
  expect_refusal("FP8", [](AttentionShape& shape) { shape.is_fp8 = true; });
  expect_refusal("latent", [](AttentionShape& shape) { shape.is_latent = true; });
  EXPECT_NE(why_not_forward(Generation::sm100, item.shape), "");
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

// The bits equal those of a later rounding.
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

// Two steps of a ring. The kernel's merge gives the same bits as a merge in a separate pass over
// memory.
TEST_F(HopperForward, MergesWithWhatStandsThereWhereItIsAskedTo) {
  const std::vector<CaseSpace> spaces = {{.dims = {{64, 64}, {40, 24}}, .most_rows = 200},
                                         {.dims = {{128, 128}, {100, 36}}, .most_rows = 300},
                                         {.dims = {{192, 128}}, .most_rows = 200},
                                         {.dims = {{256, 256}}, .most_rows = 150}};
  int32_t empty_rows = 0;
  for (uint64_t seed = 900; seed < 900 + std::max<uint64_t>(20, 2 * kCases); ++seed) {
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

// A tile holds rows of several heads, each with a slope of its own; and any scale will do.
TEST_F(HopperForward, AddsAlibiOfEveryHeadOfATile) {
  AttentionCase item = documents_case({40, 17, 3, 90, 33, 61, 1, 128, 20}, 4, 4, 8, 128);
  add_alibi(item);
  ASSERT_EQ(forward_tile_shape(Generation::sm90, item.shape).heads, 4);
  check(item);
  for (const float scale : {-0.25f, 0.0f}) {
    item.shape.scale = scale;
    check(item);
  }
}

// Documents of few tokens: several heads in a tile, whose rows are not adjacent.
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

}  // namespace
}  // namespace cpscope::tests
