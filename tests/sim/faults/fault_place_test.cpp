// Faults are found where they were planted, wherever that is.

#include "reference/dense_oracle.h"
#include "reference/faulty_walker.h"
#include "reference/mask_predicate.h"
#include "sim/faults/gallery.h"
#include "sim/faults/plan_edits.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

Toolbox make_toolbox() {
  Toolbox toolbox;
  toolbox.oracle = reference::dense_oracle();
  toolbox.watched_walker = reference::make_watched_walker;
  return toolbox;
}

constexpr const char* kRing =
    "schema = 1\n[attention]\nheads = 2\nhead_dim = 8\n[batch]\nlengths = [18, 7]\n[parallel]\n"
    "cp_size = 3\n[numerics]\ndtype = \"fp32\"\n";

/// The item in which the planters of this file put their fault; global, because planters are plain
/// functions.
int64_t item_in_turn = 0;

Fault movable_fault(std::optional<PlantedFault> (*plant)(const Plan&), Detector detector) {
  return {.name = "movable",
          .field_class = "test",
          .place = FaultPlace::plan,
          .detector = detector,
          .source = "test",
          .wild = "test",
          .scenario = kRing,
          .plant = plant};
}

std::optional<PlantedFault> plant_zeros_in_turn(const Plan& healthy) {
  if (item_in_turn >= static_cast<int64_t>(healthy.forward.computes.size())) return std::nullopt;
  const ComputeItem& item = healthy.forward.computes[static_cast<size_t>(item_in_turn)];
  if (item.num_slices == 0) return std::nullopt;
  return PlantedFault{
      .site = {{Direction::forward, StageKind::compute, item_in_turn}, item.rank, item.step},
      .what = "zeros",
      .mistake = plant_mistake(Mistake::all_zero, {.rank = item.rank, .step = item.step})};
}

std::optional<PlantedFault> plant_lost_share_in_turn(const Plan& healthy) {
  if (item_in_turn >= static_cast<int64_t>(healthy.backward.merges.size())) return std::nullopt;
  const MergeItem& item = healthy.backward.merges[static_cast<size_t>(item_in_turn)];
  // The first merge into a buffer clears it; without it the content would be undefined.
  if (item.partial == kNoBuffer || item.order == 0) return std::nullopt;
  Plan plan = healthy;
  drop_item(plan.backward, plan.backward.merges, StageKind::merge, item_in_turn);
  return PlantedFault{
      .site = {{Direction::backward, StageKind::merge, item_in_turn}, item.rank, item.step},
      .what = "a lost share",
      .plan = std::move(plan)};
}

/// Plants the fault in one item after the other; each must be found there.
int64_t find_all(const Fault& fault) {
  const Toolbox toolbox = make_toolbox();
  int64_t planted = 0;
  for (item_in_turn = 0; item_in_turn < 24; ++item_in_turn) {
    const FaultOutcome outcome = try_fault(fault, toolbox);
    if (!outcome.planted) continue;
    ++planted;
    EXPECT_TRUE(outcome.caught) << "item " << item_in_turn;
    if (!outcome.where) {
      ADD_FAILURE() << "item " << item_in_turn << " is found nowhere";
      continue;
    }
    EXPECT_EQ(outcome.where->site.item.index, item_in_turn);
    EXPECT_EQ(outcome.where->site, *outcome.planted) << describe(outcome.where->site);
  }
  return planted;
}

TEST(FaultPlace, OfZerosIsTheComputeItemThatWritesThem) {
  EXPECT_EQ(find_all(movable_fault(plant_zeros_in_turn, Detector::output)), 9)
      << "3 steps, 3 ranks";
}

TEST(FaultPlace, OfALostShareIsTheMergeThatShouldHaveAddedIt) {
  EXPECT_GE(find_all(movable_fault(plant_lost_share_in_turn, Detector::gradient_probe)), 6);
}

TEST(FaultPlace, IsWhereThinkingAboutTheFaultPutsIt) {
  using enum Direction;
  // By hand, from the catalogue's scenarios: slots of 64, 32 and 104 tokens on a zigzag of 4.
  const struct {
    const char* name;
    Direction direction;
    int rank, step;
    const char* kind;
  } places[] = {
      // In step 2 rank 3 computes with the keys of rank 1.
      {"ring_step_skipped", forward, 3, 2, "compute"},
      {"ring_step_doubled", forward, 2, 1, "merge"},
      // Ranks 0 and 1 read KV head 0 anyway.
      {"kv_heads_not_replicated", forward, 2, 0, "transfer"},
      // Tokens 60 and 96 are in the last chunks, which rank 0 owns.
      {"odd_last_token_lost", forward, 0, 0, "compute"},
      // Token 32 is the first of rank 1.
      {"cu_seqlens_off_by_one", forward, 1, 0, "compute"},
      // Chunk 2 of the slot of 40 is partly filled, and rank 1 owns it.
      {"window_of_the_longest_slot", forward, 1, 0, "compute"},
      // Rank 0 computes with the stripe of rank 3 in step 1.
      {"future_token_visible", forward, 0, 1, "compute"},
      {"heads_left_to_nobody", forward, 3, 0, "compute"},
      // Rank 0 receives no keys of rank 3.
      {"context_parallelism_silently_off", forward, 0, 0, "transfer"},
      {"replicated_keys_counted_per_rank", forward, 0, 0, "merge"},
      // Query 0 does not see key 1, which rank 0 owns too.
      {"prefix_length_lost_to_padding", forward, 0, 0, "compute"},
      // Token 3 is padding of rank 0, and is taken for the second document's first token.
      {"interior_padding_taken_for_a_tail", forward, 0, 0, "compute"},
      // A half of 16 tokens holds two whole chunks, so that own keys are right.
      {"chunks_cut_by_local_place", forward, 0, 1, "compute"},
      {"sequence_sharded_twice", forward, 0, 0, "compute"},
      // The first merge of a second partial.
      {"merged_with_lse_of_another_base", forward, 0, 1, "merge"},
      {"dkv_sent_before_it_was_added", backward, 1, 1, "merge"},
      {"stale_kv_in_backward", backward, 0, 0, "compute"},
      // Chunks 0 and 7 are where they should be; 1 and 6 are not.
      {"layout_as_the_docstring_says", forward, 1, 0, "input"},
      {"one_row_within_the_tolerance", forward, 2, 3, "finish"},
      {"ring_of_the_wrong_group", forward, 0, 0, "transfer"},
      {"message_sizes_differ", forward, 1, 0, "transfer"},
      {"one_rank_takes_fewer_steps", forward, 0, 2, "transfer"},
  };
  const Toolbox toolbox = make_toolbox();
  for (const auto& place : places) {
    const auto catalogue = fault_catalogue();
    const auto fault = std::find_if(catalogue.begin(), catalogue.end(),
                                    [&](const Fault& entry) { return entry.name == place.name; });
    ASSERT_NE(fault, catalogue.end()) << place.name;
    Fault revealing = *fault;
    revealing.blind.reset();
    const FaultOutcome outcome = try_fault(revealing, toolbox);
    ASSERT_TRUE(outcome.where.has_value()) << place.name;
    const FaultSite& site = outcome.where->site;
    EXPECT_EQ(site.item.direction, place.direction) << place.name;
    EXPECT_EQ(to_index(site.rank), place.rank) << place.name;
    EXPECT_EQ(to_index(site.step), place.step) << place.name;
    EXPECT_EQ(site.is_load ? "input" : std::string(to_name(site.item.kind)), place.kind)
        << place.name;
  }
}

TEST(FaultyPlan, OfTheGalleryCannotGetPastTheGateForPlansThatRun) {
  // Edited plans fail the checks; plans for other lengths are right for those lengths.
  const Toolbox toolbox = make_toolbox();
  for (const char* name : {"ring_step_skipped", "one_buffer_where_two_are_needed",
                           "dkv_returned_in_wrong_order", "tail_rows_over_valid_rows",
                           "context_parallelism_silently_off", "replicated_keys_counted_per_rank",
                           "sequence_sharded_twice", "chunks_cut_by_local_place"}) {
    const auto catalogue = fault_catalogue();
    const auto fault = std::find_if(catalogue.begin(), catalogue.end(),
                                    [&](const Fault& entry) { return entry.name == name; });
    ASSERT_NE(fault, catalogue.end());
    EXPECT_TRUE(try_fault(*fault, toolbox).plan_is_refuted) << name;
  }
}

}  // namespace
}  // namespace cpscope::tests
