// Every fault of the catalogue, planted once: its detector raises an alarm, at the place where it
// was planted, and the clean twin raises none.

#include "reference/dense_oracle.h"
#include "reference/faulty_walker.h"
#include "reference/mask_predicate.h"
#include "sim/faults/gallery.h"
#include "sim/faults/plan_mistakes.h"

#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

Toolbox gallery_toolbox() {
  Toolbox toolbox;
  toolbox.oracle = reference::dense_oracle();
  toolbox.watched_walker = reference::make_watched_walker;
  toolbox.plan_mistakes = visit_plan_mistakes;
  return toolbox;
}

std::string describe_outcome(const FaultOutcome& outcome) {
  std::string text = outcome.fault->name + ": " + outcome.what + "\n";
  if (!outcome.error.empty()) text += "error: " + outcome.error + "\n";
  if (outcome.planted) text += "planted at " + cpscope::describe(*outcome.planted) + "\n";
  if (outcome.where) text += "found at " + cpscope::describe(outcome.where->site) + "\n";
  for (const Alarm& alarm : outcome.alarms)
    text += std::string(to_name(alarm.detector)) + ": " + alarm.text + "\n";
  for (const Cause& cause : outcome.causes) text += cpscope::describe(cause) + "\n";
  return text;
}

/// The cause that is named for each fault; of a right answer none.
const std::map<std::string, std::string>& expected_causes() {
  static const std::map<std::string, std::string> causes = {
      {"ring_turns_the_other_way", "ranks_exchanged"},
      {"ring_step_skipped", "partial_missing"},
      {"ring_step_doubled", "keys_counted_twice"},
      {"context_parallelism_silently_off", "rank_alone"},
      {"replicated_keys_counted_per_rank", "keys_counted_twice"},
      {"dkv_sent_before_it_was_added", "partial_missing"},
      {"dkv_returned_in_wrong_order", "ranks_exchanged"},
      {"cu_seqlens_ignored", "documents_ignored"},
      {"odd_last_token_lost", "unwritten_rows"},
      {"padding_keys_visible", "padding_visible"},
      {"padding_flag_compared_with_a_string", "padding_visible"},
      {"top_left_for_bottom_right", "aligned_top_left"},
      {"prefix_length_lost_to_padding", "aligned_top_left"},
      {"window_ignored", "window_ignored"},
      {"diagonal_missing", "mask_shifted"},
      {"future_token_visible", "mask_by_local_place"},
      {"chunks_cut_by_local_place", "mask_by_local_place"},
      {"causal_halves_without_a_causal_mask", "causal_added"},
      {"rope_with_local_positions", "rope_by_local_place"},
      {"merged_with_lse_of_another_base", "merge_without_lse"},
      {"sink_left_out_of_the_merge", "sink_ignored"},
      {"sink_counted_for_every_step", "sink_counted_twice"},
      {"kv_head_by_remainder", "kv_heads_interleaved"},
      {"all_zero_output", "zeros"},
      {"one_row_within_the_tolerance", "factor"},
      {"dkv_summed_where_computed", "partial_missing"},
      {"backward_with_the_steps_lse", "lse_of_one_step"},
      {"dkv_travels_in_16_bits", "rounded_to_bf16"},
      {"rope_second_half_follows_the_first", "rope_by_local_place"},
      {"rope_of_all_ranks_in_a_group", "rope_by_local_place"},
      {"merge_overflows", "merge_overflows"},
      {"rank_without_keys_counted", "empty_rows_merged"},
      {"lse_in_another_shape", "lse_transposed"},
      {"heads_and_rows_transposed_in_exchange", "heads_transposed"},
      {"kv_heads_not_replicated", "kv_heads_not_replicated"},
      {"value_lanes_shifted", "value_lanes_shifted"},
      {"alibi_distances_across_documents", "alibi_across_documents"},
      {"bias_columns_by_received_row", "terms_by_local_place"},
      {"dropout_same_offset_in_every_step", "dropout_offset_reused"},
      {"dropout_redrawn_in_backward", "dropout_redrawn"},
      {"fp8_dkv_summed_where_computed", "partial_missing"},
      {"fp8_receivers_scale", "receivers_scale"},
      {"fp8_key_scales_of_values", "key_scales_of_values"},
      {"fp8_scale_for_descale", "scale_for_descale"},
      {"fp8_stale_scale", "stale_scale"},
      {"fp8_weights_unscaled", "weights_unscaled"},
      {"fp8_rounded_weights_summed", "rounded_weights_summed"},
      {"fp8_amax_over_padding", "amax_over_padding"},
      {"fp8_blocks_cross_documents", "blocks_cross_documents"},
      {"fp8_gradients_in_e4m3", "gradients_in_e4m3"},
      {"gathered_rows_swapped", "ranks_exchanged"},
      {"one_buffer_where_two_are_needed", "buffer_overwritten"},
      {"replicated_keys_counted_by_every_rank", "keys_counted_twice"},
      {"heads_left_to_nobody", "unwritten_rows"},
      {"tail_rows_over_valid_rows", "tail_over_valid_rows"},
      {"stale_kv_in_backward", "stale_keys_in_backward"},
      {"dq_summed_in_16_bits", "rounded_to_bf16"},
      {"sink_gradient_added_over_ranks", "factor"},
      {"latent_dv_lost", "dv_not_added"},
      {"latent_dv_in_the_rotated_elements", "dv_misplaced"},
      {"cu_seqlens_off_by_one", "boundary_shifted"},
      {"tokens_dropped_when_sharding", "unwritten_rows"},
      {"sequence_cut_to_fit_the_ranks", "unwritten_rows"},
      {"interior_padding_taken_for_a_tail", "padding_taken_for_tail"},
      {"window_turned_round", "window_reversed"},
      {"lengths_divided_and_rounded_down", "lengths_rounded_down"},
      {"sequence_sharded_twice", "sharded_twice"},
      {"window_anchored_at_the_wrong_corner", "window_at_wrong_corner"},
      {"window_of_the_longest_slot", "window_of_longest_slot"},
      {"keys_read_at_unpadded_offsets", "keys_at_unpadded_offsets"},
      {"chunks_inside_a_half_joined", "chunks_joined"},
      {"layout_written_one_way_read_another", "other_layout"},
      {"layout_as_the_docstring_says", "other_layout"},
      {"short_sequence_not_balanced", "other_layout"},
      {"second_sample_misread", "batch_transposed"},
      {"packing_of_another_cp_size", "packed_for_fewer_ranks"},
      {"stages_take_heads_in_natural_order", "kv_heads_interleaved"},
      {"empty_rows_merge_to_nan", "padding_not_cleared"},
      {"out_summed_in_16_bits", "rounded_to_bf16"},
      {"padding_rows_not_cleared", "padding_not_cleared"},
      {"lse_of_padding_not_cleared", "empty_rows_merged"},
      {"cleared_by_multiplying_with_zero", "padding_not_cleared"},
      {"latent_weights_by_local_head", "weights_by_local_head"},
      {"arrived_partial_not_merged", "partial_missing"},
      {"arrived_partial_merged_twice", "keys_counted_twice"},
      {"partial_sent_before_its_last_merge", "partial_missing"},
      {"partials_of_two_owners_exchanged", "ranks_exchanged"},
      {"dq_of_a_helper_lost", "partial_missing"},
      {"outer_hop_posted_after_the_inner_ring", "stale_keys_sent"},
      {"dq_of_a_ring_lost_on_its_way", "partial_missing"},
      {"last_round_of_a_tree_left_out", "partial_missing"},
      {"alibi_distances_of_the_tile", "terms_by_local_place"},
      {"alibi_slopes_of_local_heads", "heads_exchanged"},
      {"dropout_scaled_twice", "factor"},
      {"dropout_before_the_softmax", "dropout_before_softmax"},
      {"dropout_heads_numbered_from_zero", "heads_exchanged"},
      {"group_of_fewer_ranks", "rank_alone"},
      {"drafts_masked_by_local_length", "mask_by_local_place"},
      {"local_length_one_too_long", "local_length_too_long"},
      // Right answers have no cause.
      {"documents_assigned_before_ranks", ""},
      {"kv_expanded_before_exchange", ""},
      {"everything_gathered_for_a_window", ""},
      {"message_sizes_differ", ""},
      {"group_across_two_communicators", ""},
      {"ring_of_the_wrong_group", ""},
      {"all_send_before_they_receive", ""},
      {"one_rank_takes_fewer_steps", ""},
  };
  return causes;
}

// One test, because the gallery takes long.
TEST(FaultGallery, CatchesEveryFaultWhereItWasPlantedNamesItsCauseAndNeverCriesWolf) {
  const GalleryReport gallery = run_gallery(fault_catalogue(), gallery_toolbox(), {});
  EXPECT_GE(gallery.outcomes.size(), 69u);
  for (const FaultOutcome& outcome : gallery.outcomes) {
    EXPECT_TRUE(outcome.error.empty() && outcome.caught) << describe_outcome(outcome);
    EXPECT_TRUE(outcome.localised) << describe_outcome(outcome);
    EXPECT_GT(outcome.cells_exercised, 0) << describe_outcome(outcome);
    const auto cause = expected_causes().find(outcome.fault->name);
    ASSERT_TRUE(cause != expected_causes().end()) << outcome.fault->name << " has no cause";
    EXPECT_EQ(outcome.cause_names(),
              cause->second.empty() ? std::vector<std::string>{} : std::vector{cause->second})
        << describe_outcome(outcome);
    for (const Alarm& alarm : outcome.false_alarms)
      ADD_FAILURE() << outcome.fault->name << ": " << to_name(alarm.detector) << ": " << alarm.text;
    if (!outcome.blind) continue;
    EXPECT_EQ(outcome.blind->cells_exercised, 0) << outcome.fault->name;
    EXPECT_TRUE(outcome.blind->is_silent) << outcome.fault->name;
  }
  EXPECT_TRUE(gallery.passed());
}

TEST(FaultGallery, CallsAFaultMissedThatItsDetectorDoesNotSee) {
  Fault unseen = fault_catalogue().front();
  ASSERT_EQ(unseen.detector, Detector::balance) << "right numbers, badly balanced";
  unseen.detector = Detector::count;
  unseen.blind.reset();
  const GalleryReport gallery = run_gallery({&unseen, 1}, gallery_toolbox(), {});
  EXPECT_EQ(gallery.caught(), 0);
  EXPECT_FALSE(gallery.passed());
}

TEST(FaultGallery, DoesNotCallAScenarioBlindInWhichTheFaultDoesSomething) {
  Fault seen = fault_catalogue().front();
  seen.blind = BlindScenario{seen.scenario, "a lie"};
  const GalleryReport gallery = run_gallery({&seen, 1}, gallery_toolbox(), {});
  EXPECT_GT(gallery.outcomes.front().blind->cells_exercised, 0);
  EXPECT_FALSE(gallery.passed());
}

TEST(FaultGallery, HoldsEveryClassOfTheFieldAndEveryDefectOfTransformerEngine) {
  std::set<std::string> classes;
  for (const Fault& fault : fault_catalogue()) {
    std::stringstream words(fault.field_class);
    for (std::string word; std::getline(words, word, ',');)
      classes.insert(word.substr(word.find_first_not_of(' ')));
  }
  for (const OutOfScope& entry : out_of_scope()) classes.insert(entry.field_class);
  for (int number = 1; number <= 49; ++number)
    EXPECT_TRUE(classes.contains(std::to_string(number))) << "class " << number;
  for (int number = 1; number <= 12; ++number)
    EXPECT_TRUE(classes.contains("D" + std::to_string(number))) << "defect D" << number;
}

TEST(FaultGallery, UsesEveryDetector) {
  std::set<Detector> detectors;
  for (const Fault& fault : fault_catalogue()) detectors.insert(fault.detector);
  EXPECT_EQ(detectors.size(), 10u);
}

TEST(FaultGallery, NamesEachFaultOnceWithItsSource) {
  std::set<std::string> names;
  for (const Fault& fault : fault_catalogue()) {
    EXPECT_TRUE(names.insert(fault.name).second) << fault.name << " is there twice";
    EXPECT_FALSE(fault.source.empty() || fault.wild.empty() || fault.field_class.empty())
        << fault.name;
  }
}

}  // namespace
}  // namespace cpscope::tests
