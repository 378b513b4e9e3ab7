// The forward for few query rows with many keys, on the emulator or a GPU, against the dense
// reference. No kernel may read rows that no query sees, write outside its rows, or lose a pair.
#include "kernels/attention/attention_decode.h"

#include "kernels/attention/packed_heads.h"
#include "kernels/dispatch/attention_dispatch.h"
#include "tests/kernels/attention/attention_cases.h"
#include "tests/kernels/attention/attention_device.h"
#include "tests/kernels/attention/attention_reference.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#ifdef CPSCOPE_EMULATED
#include "kernels/emulator/settings.h"
#endif

namespace cpscope::tests {
namespace {

using kernels::Generation;

#ifdef CPSCOPE_EMULATED
constexpr uint64_t kCases = 6;  // for each pair of head_dims
constexpr int32_t kMostKeys = 1'500;
#else
constexpr uint64_t kCases = 20;
constexpr int32_t kMostKeys = 6'000;
#endif

class DecodeForward : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string missing = missing_device(); !missing.empty())
      GTEST_SKIP() << "requires gpu: " << missing;
  }

  static void check(const AttentionCase& item, double sharpness = 1.0) {
    ASSERT_TRUE(is_decode(item.shape)) << describe(item);
    const AttentionInputs inputs = draw_inputs(item, sharpness);
    const ForwardAnswer answer = run_forward(Generation::portable, item, inputs);
    EXPECT_EQ(judge_forward(item, inputs, answer), "") << describe(item);
  }

  static void check_random(uint64_t first_seed, const std::vector<std::pair<int, int>>& dims) {
    for (uint64_t seed = first_seed; seed < first_seed + kCases && !HasFailure(); ++seed) {
#ifdef CPSCOPE_EMULATED
      kernels::emulator::settings().seed = seed;
#endif
      std::mt19937_64 random(seed);
      const auto draw = [&](int32_t low, int32_t high) {
        return std::uniform_int_distribution<int32_t>(low, high)(random);
      };
      Requests requests;
      requests.dtype = draw(0, 1) == 0 ? Dtype::bf16 : Dtype::fp16;
      std::tie(requests.head_dim_qk, requests.head_dim_v) =
          dims[static_cast<size_t>(draw(0, static_cast<int32_t>(dims.size()) - 1))];
      requests.rows = draw(1, 3);
      requests.group = std::array{1, 2, 3, 4, 5, 8, 12}[static_cast<size_t>(draw(0, 6))];
      requests.kv_heads = requests.group > 4 ? 1 : draw(1, 2);
      requests.gap = draw(0, 70);
      const int32_t count = draw(1, 3);
      for (int32_t i = 0; i < count; ++i) requests.lengths.push_back(draw(520, kMostKeys));
      if (count > 1 && draw(0, 1) == 0) {
        requests.lengths.back() = draw(3, 30);
        requests.lengths.front() += 600;  // still many keys on average
      }
      AttentionCase item = decode_case(requests);
      item.seed = seed;

      if (draw(0, 3) == 0) item.shape.softcap = 1.5f;
      check(item, draw(0, 3) == 0 ? 8.0 : 1.0);
    }
  }
};

TEST_F(DecodeForward, HoldsSmallHeads) { check_random(100, {{64, 64}, {40, 40}, {64, 8}, {1, 3}}); }

TEST_F(DecodeForward, HoldsHeadsUpTo128) {
  check_random(200, {{128, 128}, {80, 80}, {64, 128}, {100, 36}});
}

TEST_F(DecodeForward, HoldsWideQueriesWithNarrowerValues) {
  check_random(300, {{192, 128}, {136, 64}});
}

TEST_F(DecodeForward, HoldsHeadsUpTo256) { check_random(400, {{256, 256}, {200, 144}}); }

TEST_F(DecodeForward, AddsUpThePartsOfManyKeys) {
  const AttentionCase item = decode_case({.rows = 2, .lengths = {1'500, 700}, .kv_heads = 2});
  const kernels::TileList tiles = query_tiles(item, decode_tile(item.shape));
  EXPECT_GE(tiles.cut_tiles.size(), 2U);
  EXPECT_GE(tiles.num_part_slots, 4);
  check(item);
}

// More parts than one team of threads adds up, the last team's share smaller than the others'.
TEST_F(DecodeForward, AddsUpManyPartsInTeams) {
  const AttentionCase item = decode_case({.lengths = {11'300}, .group = 2});
  const kernels::TileList tiles = query_tiles(item, decode_tile(item.shape));
  EXPECT_GT(tiles.num_part_slots, 2 * kernels::kPartsOfTeam);
  EXPECT_NE(tiles.num_part_slots % kernels::kPartsOfTeam, 0);
  check(item);
}

TEST_F(DecodeForward, TakesHeadsThatAreAPieceOfAGroup) {
  AttentionCase item = decode_case({.lengths = {600}, .kv_heads = 2, .group = 6});
  item.shape.first_head = 3;  // 3, 4, 5 of KV head 0, and 6 to 11 of KV head 1
  item.shape.num_heads = 9;
  check(item);
  EXPECT_EQ(decode_tile(item.shape).heads, 3);
}

TEST_F(DecodeForward, WritesRowsThatSeeNothing) {
  // The first row of the first request sees no key.
  AttentionCase item = decode_case({.rows = 2, .lengths = {1, 1'300}});
  item.shape.q_rows += 1;  // a request without keys
  check(item);
}

TEST_F(DecodeForward, TakesRowsWithSeveralRanges) {
  AttentionCase item = decode_case({.rows = 2, .lengths = {1'000}});
  // The second row does not see keys [300, 777).
  item.slices = {{0, 2, 0, 300, -5'000, 5'000},
                 {0, 1, 300, 777, -5'000, 5'000},
                 {0, 2, 777, 1'000, -5'000, 5'000}};
  check(item);
}

TEST_F(DecodeForward, TakesScalesThatAreNotPositive) {
  for (const float scale : {-0.25f, 0.0f}) {
    AttentionCase item = decode_case({.lengths = {530}, .head_dim_qk = 64, .head_dim_v = 64});
    item.shape.scale = scale;
    check(item);
  }
}

TEST_F(DecodeForward, KeepsTheNanOfWhatItSees) {
  const AttentionCase item = decode_case({.lengths = {530, 1'400}, .group = 2});
  AttentionInputs inputs = draw_inputs(item);
  inputs.k.at(700, 0)[7] = std::numeric_limits<double>::quiet_NaN();
  const ForwardAnswer answer = run_forward(Generation::portable, item, inputs);
  for (int32_t q = 0; q < 2; ++q) {
    EXPECT_EQ(std::isnan(answer.out.at(q, 0)[0]), q == 1) << "row " << q;
    EXPECT_EQ(std::isnan(answer.lse[static_cast<size_t>(2 * q)]), q == 1) << "row " << q;
  }
  EXPECT_TRUE(std::isnan(answer.max_logit[0]));
}

TEST_F(DecodeForward, WritesTheDtypeAsItRoundsFp32) {
  const AttentionCase item = decode_case({.rows = 3, .lengths = {1'100, 520}});
  const AttentionInputs inputs = draw_inputs(item);
  const kernels::TileList tiles = query_tiles(item, decode_tile(item.shape));
  const ForwardAnswer wide = run_forward(Generation::portable, item, inputs, tiles);
  const ForwardAnswer narrow = run_forward(Generation::portable, item, inputs, tiles, true);
  EXPECT_EQ(find_other_bits(item, narrow, wide), "");
  EXPECT_EQ(narrow.lse, wide.lse);
}

TEST_F(DecodeForward, MergesAsTheMergeKernelDoes) {
  for (const bool rounds : {false, true}) {
    const AttentionCase item = decode_case({.rows = 2, .lengths = {1'400}, .gap = 0});
    AttentionCase before = item, after = item;
    before.slices = {{0, 2, 0, 600, -5'000, 5'000}};
    after.slices = {{0, 1, 600, 1'399, -5'000, 5'000}};  // the second row sees none of these
    for (AttentionCase* half : {&before, &after}) half->shape.slices = sum_slices(half->slices);
    const AttentionInputs inputs = draw_inputs(item);
    const ForwardAnswer by_kernel = run_forward_in_two(before, after, inputs, true, rounds);
    const ForwardAnswer apart = run_forward_in_two(before, after, inputs, false, rounds);
    EXPECT_EQ(by_kernel.out.values, apart.out.values);
    EXPECT_EQ(by_kernel.lse, apart.lse);
    EXPECT_EQ(by_kernel.max_logit, apart.max_logit);
  }
}

TEST_F(DecodeForward, GivesTheSameBitsInAnyOrderOfThreads) {
  const AttentionCase item = decode_case({.rows = 2, .lengths = {1'200, 900}, .kv_heads = 2});
  const AttentionInputs inputs = draw_inputs(item);
  const ForwardAnswer first = run_forward(Generation::portable, item, inputs);
  for (uint64_t seed = 2; seed < 4; ++seed) {
#ifdef CPSCOPE_EMULATED
    kernels::emulator::settings().seed = seed;
#endif
    const ForwardAnswer again = run_forward(Generation::portable, item, inputs);
    EXPECT_EQ(again.out.values, first.out.values);
    EXPECT_EQ(again.lse, first.lse);
    EXPECT_EQ(again.max_logit, first.max_logit);
  }
}

TEST_F(DecodeForward, IsForFewRowsWithManyKeysAlone) {
  const AttentionCase item = decode_case({.lengths = {600, 600}});
  EXPECT_TRUE(is_decode(item.shape));
  const auto with = [&](auto change) {
    kernels::AttentionShape shape = item.shape;
    change(shape);
    return is_decode(shape);
  };
  EXPECT_FALSE(with([](auto& shape) { shape.slices.rows_together = 33; }));
  EXPECT_FALSE(with([](auto& shape) { shape.slices = {}; })) << "unknown";
  EXPECT_FALSE(with([](auto& shape) { shape.dtype = Dtype::fp32; }));
  EXPECT_FALSE(with([](auto& shape) { shape.has_terms = true; }));
  // Codes of one byte: one scale a tensor, no cap, up to 128 of a head.
  EXPECT_TRUE(with([](auto& shape) { shape.is_fp8 = true; }));
  EXPECT_FALSE(with([](auto& shape) { shape.is_fp8 = shape.is_mx = true; }));
  EXPECT_FALSE(with([](auto& shape) {
    shape.is_fp8 = true;
    shape.softcap = 1.0f;
  }));
  EXPECT_FALSE(with([](auto& shape) {
    shape.is_fp8 = true;
    shape.head_dim_qk = 136;
  }));
}

}  // namespace
}  // namespace cpscope::tests
