// The Hopper forward of latent attention, on the emulator or a GPU, against the dense reference: V
// is the first elements of K, and several heads share a tile.
#include "kernels/dispatch/attention_dispatch.h"
#include "kernels/hopper/hopper_latent_forward.h"
#include "tests/kernels/attention/attention_cases.h"
#include "tests/kernels/attention/attention_device.h"
#include "tests/kernels/attention/attention_reference.h"

#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#ifdef CPSCOPE_EMULATED
#include "kernels/emulator/settings.h"
#endif

namespace cpscope::tests {
namespace {

using kernels::Generation;

#ifdef CPSCOPE_EMULATED
constexpr uint64_t kLatentCases = 5;
constexpr int32_t kMostLatentKeys = 700;
#else
constexpr uint64_t kLatentCases = 12;
constexpr int32_t kMostLatentKeys = 1'500;
#endif

/// One KV head that all query heads read.
AttentionCase latent(AttentionCase item) {
  kernels::AttentionShape& shape = item.shape;
  shape.is_latent = true;
  shape.group = shape.first_head + shape.num_heads;
  shape.first_kv_head = 0;
  shape.num_kv_heads = 1;
  return item;
}

AttentionCase latent_decode(Requests requests) {
  requests.head_dim_qk = 576;
  requests.head_dim_v = 512;
  return latent(decode_case(requests));
}

kernels::TileList latent_tiles(const AttentionCase& item) {
  return query_tiles(item, forward_tile_shape(Generation::sm90, item.shape));
}

class LatentForward : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string missing = missing_device(); !missing.empty())
      GTEST_SKIP() << "requires gpu: " << missing;
  }

  static void check(const AttentionCase& item, double sharpness = 1.0) {
    ASSERT_EQ(why_not_forward(Generation::sm90, item.shape), "") << describe(item);
    const AttentionInputs inputs = draw_inputs(item, sharpness);
    const ForwardAnswer answer = run_forward(Generation::sm90, item, inputs);
    EXPECT_EQ(judge_forward(item, inputs, answer), "") << describe(item);
  }
};

TEST_F(LatentForward, HoldsRandomBandsAndHeads) {
  for (uint64_t seed = 1; seed <= kLatentCases && !HasFailure(); ++seed) {
#ifdef CPSCOPE_EMULATED
    kernels::emulator::settings().seed = seed;
#endif
    AttentionCase item =
        latent(random_case(seed, {.dims = {{576, 512}, {40, 30}, {576, 512}, {100, 64}}}));
    check(item, seed % 4 == 0 ? 8.0 : 1.0);
  }
}

TEST_F(LatentForward, HoldsRequestsWithTheirOwnKeys) {
  std::mt19937_64 random(5);
  const auto draw = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random);
  };
  for (uint64_t seed = 1; seed <= kLatentCases && !HasFailure(); ++seed) {
    Requests requests;
    requests.dtype = draw(0, 1) == 0 ? Dtype::bf16 : Dtype::fp16;
    requests.rows = draw(1, 3);
    requests.group = std::array{1, 3, 16, 40, 64, 128}[static_cast<size_t>(draw(0, 5))];
    requests.gap = draw(0, 70);
    for (int32_t i = draw(1, 3); i > 0; --i) requests.lengths.push_back(draw(1, kMostLatentKeys));
    AttentionCase item = latent_decode(requests);
    item.seed = seed;
    check(item, draw(0, 3) == 0 ? 8.0 : 1.0);
  }
}

TEST_F(LatentForward, AddsUpThePartsOfManyKeys) {
  const AttentionCase item = latent_decode({.rows = 2, .lengths = {1'600, 700}, .group = 16});
  const kernels::TileList tiles = latent_tiles(item);
  EXPECT_EQ(tiles.shape.heads, 16);
  EXPECT_EQ(tiles.shape.owned_rows, 4);
  EXPECT_GE(tiles.cut_tiles.size(), 1U);
  EXPECT_GE(tiles.num_part_slots, 2);
  check(item);
}

// Enough rows to fill all CTAs: their sums would take as much memory as all rows several times.
TEST_F(LatentForward, LeavesThePartsOfAPromptWhole) {
  kernels::AttentionShape shape = latent(causal_case(Dtype::bf16, 64, 576, 512)).shape;
  EXPECT_TRUE(forward_tile_shape(Generation::sm90, shape).cuts_keys);
  shape.q_rows = 100'000;
  EXPECT_FALSE(forward_tile_shape(Generation::sm90, shape).cuts_keys);
}

TEST_F(LatentForward, HoldsACausalPrompt) {
  AttentionCase item = latent(causal_case(Dtype::bf16, 150, 576, 512));
  check(item);
  item.shape.scale = -0.25f;
  check(item);
  item.shape.scale = 0.0f;
  check(item);
}

TEST_F(LatentForward, WritesRowsThatSeeNothing) {
  AttentionCase item = latent_decode({.rows = 2, .lengths = {1, 300}});
  item.shape.q_rows += 1;  // a request without keys
  check(item);
}

TEST_F(LatentForward, KeepsTheNanOfWhatItSees) {
  const AttentionCase item = latent_decode({.lengths = {130, 200}, .group = 64});
  AttentionInputs inputs = draw_inputs(item);
  inputs.k.at(140, 0)[7] = std::numeric_limits<double>::quiet_NaN();
  take_values_of_keys(inputs);
  const ForwardAnswer answer = run_forward(Generation::sm90, item, inputs);
  for (int32_t q = 0; q < 2; ++q) {
    EXPECT_EQ(std::isnan(answer.out.at(q, 0)[0]), q == 1) << "row " << q;
    EXPECT_EQ(std::isnan(answer.lse[static_cast<size_t>(64 * q)]), q == 1) << "row " << q;
  }
  EXPECT_TRUE(std::isnan(answer.max_logit[0]));
}

TEST_F(LatentForward, WritesTheDtypeAsItRoundsFp32AndMergesAsTheMergeKernelDoes) {
  const AttentionCase item = latent_decode({.rows = 2, .lengths = {400}, .gap = 0});
  const AttentionInputs inputs = draw_inputs(item);
  const ForwardAnswer wide = run_forward(Generation::sm90, item, inputs, latent_tiles(item));
  const ForwardAnswer narrow =
      run_forward(Generation::sm90, item, inputs, latent_tiles(item), true);
  EXPECT_EQ(find_other_bits(item, narrow, wide), "");
  EXPECT_EQ(narrow.lse, wide.lse);
  for (const bool rounds : {false, true}) {
    AttentionCase before = item, after = item;
    before.slices = {{0, 2, 0, 200, -5'000, 5'000}};
    after.slices = {{0, 1, 200, 399, -5'000, 5'000}};  // the second row sees none of these
    const ForwardAnswer by_kernel = run_forward_in_two(before, after, inputs, true, rounds);
    const ForwardAnswer apart = run_forward_in_two(before, after, inputs, false, rounds);
    EXPECT_EQ(by_kernel.out.values, apart.out.values);
    EXPECT_EQ(by_kernel.lse, apart.lse);
    EXPECT_EQ(by_kernel.max_logit, apart.max_logit);
  }
}

TEST_F(LatentForward, GivesTheSameBitsInAnyOrderOfThreads) {
  const AttentionCase item = latent_decode({.rows = 2, .lengths = {1'200}, .group = 16});
  const AttentionInputs inputs = draw_inputs(item);
  const ForwardAnswer first = run_forward(Generation::sm90, item, inputs);
  for (uint64_t seed = 2; seed < 4; ++seed) {
#ifdef CPSCOPE_EMULATED
    kernels::emulator::settings().seed = seed;
#endif
    const ForwardAnswer again = run_forward(Generation::sm90, item, inputs);
    EXPECT_EQ(again.out.values, first.out.values);
    EXPECT_EQ(again.lse, first.lse);
  }
}

TEST_F(LatentForward, SaysWhatItDoesNotSupport) {
  AttentionCase item = latent_decode({.lengths = {600}});
  EXPECT_EQ(why_not_forward(Generation::sm90, item.shape), "");
  item.shape.head_dim_v = 520;
  EXPECT_NE(why_not_forward(Generation::sm90, item.shape).find("of V up to 512"),
            std::string::npos);
  item.shape.head_dim_v = 512;
  item.shape.dtype = Dtype::fp32;
  EXPECT_NE(why_not_forward(Generation::sm90, item.shape).find("bf16 and fp16"), std::string::npos);
}

}  // namespace
}  // namespace cpscope::tests
