// What a schedule that sends only needed keys saves under masks that list the keys of each row.
#include "sim/plan/plan_summary.h"
#include "sim/scenario/mask_slices.h"
#include "tests/sim/plan/plan_cases.h"

#include <string>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

Scenario sparse_case(const MaskGenerator& mask, std::vector<int64_t> lengths, int32_t ranks,
                     CommType comm, LayoutKind layout = LayoutKind::contiguous) {
  Scenario scenario = make_case(std::move(lengths), ranks, layout, comm);
  scenario.attention.mask_type = MaskType::slices;
  scenario.attention.slices = generate_slices(mask, scenario.batch).value();
  scenario.attention.generator = mask;
  return scenario;
}

TEST(SparseTraffic, OfScatteredRowsIsThatOfTheWholeDocument) {
  // A row sees 64 of up to 1024 keys; the 128 rows of a rank together see nearly all of them.
  const MaskGenerator top_k{
      .name = "top_k", .count = 4, .window_left = 15, .window_right = 0, .keys = 64};
  const Plan plan = plan_of(sparse_case(top_k, {1024}, 8, CommType::group_cast));
  expect_proved(plan);
  const PlanSummary sparse = summarise(plan);
  const PlanSummary causal =
      summarise(plan_of(make_case({1024}, 8, LayoutKind::contiguous, CommType::group_cast)));
  EXPECT_EQ(sparse.kv_bytes_moved, sparse.kv_bytes_necessary);
  // 128 rows of rank r need r * 128 keys of others: 28 * 128 rows of 8 elements in bf16.
  EXPECT_EQ(causal.kv_bytes_necessary, 28 * 128 * 16);
  EXPECT_EQ(sparse.kv_bytes_necessary, 3583 * 16);
  EXPECT_EQ(causal.visible_pairs, 524800);
  // 12 % of the work, and all keys but one.
  EXPECT_EQ(sparse.visible_pairs, 63520);
}

TEST(SparseTraffic, OfBlocksIsThatOfTheChosenOnes) {
  // Blocks as large as a rank's rows: one block of another rank for each, but the first.
  const MaskGenerator blocks{.name = "block_top_k", .block = 128, .blocks = 1};
  const Plan plan = plan_of(sparse_case(blocks, {1024}, 8, CommType::group_cast));
  expect_proved(plan);
  EXPECT_EQ(summarise(plan).kv_bytes_necessary, 7 * 128 * 16);
}

TEST(SparseTraffic, IsProvedForEverySchedule) {
  const MaskGenerator masks[] = {
      {.name = "top_k", .count = 1, .window_left = 2, .window_right = 0, .keys = 9},
      {.name = "block_top_k", .block = 5, .blocks = 2}};
  for (const MaskGenerator& mask : masks) {
    for (const CommType comm :
         {CommType::p2p, CommType::a2a, CommType::all_gather, CommType::a2a_p2p,
          CommType::group_cast, CommType::pass_q, CommType::token_ring, CommType::helper_ring,
          CommType::mesh, CommType::gather_q, CommType::double_ring}) {
      for (const LayoutKind layout :
           {LayoutKind::contiguous, LayoutKind::dual_chunk, LayoutKind::striped}) {
        Scenario scenario = sparse_case(mask, {48, 32}, 4, comm, layout);
        scenario.attention.heads = scenario.attention.kv_heads = 4;
        expect_proved(plan_of(scenario));
      }
    }
  }
}

}  // namespace
}  // namespace cpscope::tests
