// Bugs planted in the portable forward, and in those of decode and of latent attention. The tests
// against the reference must detect each of them. A bug counts as detected if a case fails: a wrong
// number, a NaN, a deadlock, an access outside. Emulator only.
#include "kernels/device/device.h"
#include "kernels/emulator/settings.h"
#include "tests/kernels/attention/attention_cases.h"
#include "tests/kernels/attention/attention_device.h"
#include "tests/kernels/device/source_lines.h"

#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using kernels::emulator::Fault;
using kernels::emulator::settings;

/// The tests' result for one case, "" if it is correct.
std::string verdict(const AttentionCase& item,
                    const std::function<void(kernels::TileList&)>& change = {}) {
  const AttentionInputs inputs = draw_inputs(item);
  const kernels::Generation generation =
      item.shape.is_latent ? kernels::Generation::sm90 : kernels::Generation::portable;
  try {
    kernels::TileList tiles = query_tiles(item, forward_tile_shape(generation, item.shape));
    if (change) change(tiles);
    return judge_forward(item, inputs, run_forward(generation, item, inputs, tiles));
  } catch (const kernels::DeviceError& error) {
    return error.what();
  }
}

class PlantedBugs : public ::testing::Test {
 protected:
  void TearDown() override { settings() = {}; }

  /// Tries several cases and orders of threads until one fails.
  static bool is_seen(Fault fault, int32_t line = 0) {
    AttentionCase item = causal_case(Dtype::bf16, 200, 40, 64);
    item.shape.num_heads = item.shape.group = 3;
    return is_seen_in({item}, fault, line);
  }

  static bool is_seen_in(const std::vector<AttentionCase>& items, Fault fault, int32_t line) {
    kernels::emulator::clear_counts();
    for (uint64_t seed = 1; seed <= 8; ++seed) {
      for (const AttentionCase& item : items) {
        settings() = {.seed = seed, .fault = fault, .fault_line = line};
        if (verdict(item).empty()) continue;
        EXPECT_GT(kernels::emulator::counts().faults, 0) << "it failed without the fault";
        return true;
      }
    }
    EXPECT_GT(kernels::emulator::counts().faults, 0) << "the fault was never met";
    return false;
  }
};

TEST_F(PlantedBugs, NoneIsSeenWhereNoneIs) {
  EXPECT_EQ(verdict(causal_case(Dtype::bf16, 200, 40, 64)), "");
}

TEST_F(PlantedBugs, EveryMissingBarrierIsSeen) {
  for (const char* file : {"/attention/attention_forward.cu", "/device/work_items.h"}) {
    const std::vector<int32_t> lines =
        lines_with(std::string(CPSCOPE_KERNELS) + file, "__syncthreads();");
    ASSERT_FALSE(lines.empty()) << file;
    for (const int32_t line : lines)
      EXPECT_TRUE(is_seen(Fault::skip_barrier, line)) << file << ", line " << line;
  }
}

TEST_F(PlantedBugs, EveryMissingBarrierOfADecodeStepIsSeen) {
  // Items after another, with parts of the keys and with all of them, and rows of several heads.
  const AttentionCase cut = decode_case({.rows = 3, .lengths = {1'200, 700, 1'100}}),
                      whole = decode_case({.rows = 3, .lengths = {600, 500, 700}, .kv_heads = 3});
  // Parts for several teams of threads.
  const AttentionCase many = decode_case({.lengths = {11'300}, .group = 2});
  for (const AttentionCase& one : {cut, whole, many}) ASSERT_EQ(verdict(one), "");
  for (const char* file : {"/attention/decode_rows.h", "/attention/attention_decode.cu",
                           "/attention/key_part_sums.h", "/device/work_items.h"}) {
    const std::string path = std::string(CPSCOPE_KERNELS) + file;
    const std::vector<int32_t> lines = lines_with(path, "__syncthreads();");
    ASSERT_FALSE(lines.empty()) << file;
    for (const int32_t line : lines)
      EXPECT_TRUE(is_seen_in({cut, whole, many}, Fault::skip_barrier, line))
          << file << ", line " << line;
  }
  EXPECT_TRUE(is_seen_in({cut}, Fault::skip_copy_wait, 0));
  // A short tile in memory that nothing was written to before.
  AttentionCase short_first = decode_case({.lengths = {800}});
  short_first.slices = {{0, 1, 0, 10, -900, 900}, {0, 1, 50, 800, -900, 900}};
  EXPECT_TRUE(is_seen_in({short_first}, Fault::skip_zero_fill, 0));
}

TEST_F(PlantedBugs, EveryMissingBarrierOfLatentAttentionIsSeen) {
  const auto latent_case = [](int32_t rows, std::vector<int32_t> lengths) {
    AttentionCase item = decode_case({.rows = rows,
                                      .lengths = std::move(lengths),
                                      .group = 16,
                                      .head_dim_qk = 576,
                                      .head_dim_v = 512});
    item.shape.is_latent = true;
    return item;
  };
  AttentionCase item = latent_case(3, {300, 200});
  // All rows of the tile; a pair of tiles, and one tile alone.
  const AttentionCase pair = latent_case(4, {100, 90}), single = latent_case(4, {60, 50});
  for (const AttentionCase& one : {item, pair, single}) ASSERT_EQ(verdict(one), "");
  const std::string path = CPSCOPE_KERNELS "/hopper/hopper_latent_forward.cu";
  const auto is_seen_at = [&](Fault fault, int32_t line) {
    return is_seen_in({item, pair, single}, fault, line);
  };
  const auto unseen = [&](Fault fault, const std::string& text) {
    std::vector<int32_t> lines = lines_with(path, text);
    std::erase_if(lines, [&](int32_t line) { return is_seen_at(fault, line); });
    return lines;
  };
  ASSERT_FALSE(lines_with(path, "named_barrier_sync(").empty());
  EXPECT_EQ(unseen(Fault::skip_barrier, "__syncthreads("), std::vector<int32_t>{});
  EXPECT_EQ(unseen(Fault::skip_named_barrier, "named_barrier_sync("), std::vector<int32_t>{});
  // "go" only says when products begin best, and a tile whose weights are told has been loaded.
  std::vector<int32_t> unneeded = lines_with(path, "mbarrier_wait(at_.go(");
  ASSERT_EQ(unneeded.size(), 1U);
  unneeded.push_back(unneeded.front() + 1);
  EXPECT_EQ(unseen(Fault::skip_transaction_wait, "mbarrier_wait("), unneeded);
  for (const Fault fault : {Fault::skip_copy_wait, Fault::skip_product_wait,
                            Fault::wrong_panel_stride, Fault::skip_clipping, Fault::skip_swizzle})
    EXPECT_TRUE(is_seen_at(fault, 0)) << static_cast<int>(fault);
}

TEST_F(PlantedBugs, CopyWaitThatDoesNotWaitIsSeen) { EXPECT_TRUE(is_seen(Fault::skip_copy_wait)); }

TEST_F(PlantedBugs, RowsThatAreNotFilledWithZeroAreSeen) {
  EXPECT_TRUE(is_seen(Fault::skip_zero_fill));
}

TEST_F(PlantedBugs, ReadingBeyondARunIsSeen) { EXPECT_TRUE(is_seen(Fault::copy_invalid_rows)); }

TEST_F(PlantedBugs, LoadThatForgetsToTransposeIsSeen) {
  EXPECT_TRUE(is_seen(Fault::plain_for_transposed));
}

TEST_F(PlantedBugs, WrongRangeSetIsSeen) {
  AttentionCase item = full_case(Dtype::bf16, 90, 64, 64);
  item.slices = {{0, 90, 0, 20, -90, 90}, {0, 90, 40, 85, -90, 90}};
  ASSERT_EQ(verdict(item), "");
  EXPECT_NE(verdict(item,
                    [](kernels::TileList& tiles) {
                      for (kernels::TileRun& run : tiles.runs) run.range_set ^= 1;
                    }),
            "");
}

TEST_F(PlantedBugs, MaskThatIsLeftOutIsSeen) {
  EXPECT_NE(verdict(causal_case(Dtype::bf16, 90, 64, 64),
                    [](kernels::TileList& tiles) {
                      for (kernels::TileRun& run : tiles.runs) run.is_masked = 0;
                    }),
            "");
}

TEST_F(PlantedBugs, TileThatIsTakenTwiceOrNeverIsSeen) {
  const AttentionCase item = full_case(Dtype::bf16, 200, 64, 64);
  EXPECT_NE(verdict(item, [](kernels::TileList& tiles) { tiles.work.pop_back(); }), "");
  EXPECT_NE(verdict(item,
                    [](kernels::TileList& tiles) {
                      // Repeats the first key tile of the first query tile.
                      kernels::TileRun& run = tiles.runs[0];
                      run.begin = std::max(0, run.begin + tiles.shape.walked_rows);
                    }),
            "");
}

}  // namespace
}  // namespace cpscope::tests
