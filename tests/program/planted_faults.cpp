// Mistakes in plans, inputs and merges, as the fault gallery plants them, in scenarios of all
// kinds.

#include "reference/faulty_walker.h"
#include "tests/program/planted_mistakes.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace cpscope::tests {
namespace {

/// A fault of the gallery, the cause that names it, and the lines that its scenarios need.
struct GalleryMistake {
  const char *fault, *cause;
  const char *attention = "", *batch = "", *parallel = "", *numerics = "";
};

constexpr const char* kDecoder =
    "cp_size = 2\ncp_comm_type = \"gather_q\"\nlayout = \"striped\"\nstripe = 4";
constexpr const char* kBottomRight = "attn_mask_type = \"causal_bottom_right\"\n";
constexpr const char* kTwoSided = "attn_mask_type = \"no_mask\"\nwindow_size = [5, 5]\n";
constexpr const char* kGatherOfTwo =
    "cp_size = 2\ncp_comm_type = \"all_gather\"\nlayout = \"dual_chunk\"";
constexpr const char* kRing = "cp_size = 4\ncp_comm_type = \"p2p\"";
constexpr const char* kChunks = "layout = \"dual_chunk\"";
constexpr const char* kForward = "backward = false";

constexpr GalleryMistake kGallery[] = {
    {"gathered_rows_swapped", "ranks_exchanged", "", "",
     "cp_size = 4\ncp_comm_type = \"all_gather\""},
    {"one_buffer_where_two_are_needed", "buffer_overwritten", "", "", kRing},
    {"replicated_keys_counted_by_every_rank", "keys_counted_twice", "", "",
     "cp_size = 4\ncp_comm_type = \"p2p\"\nkv_replicated = 8"},
    {"tail_rows_over_valid_rows", "tail_over_valid_rows", "", "lengths = [61]",
     "cp_size = 4\ncp_comm_type = \"a2a\"\nlayout = \"contiguous\""},
    {"stale_kv_in_backward", "stale_keys_in_backward", "", "", kRing},
    {"cu_seqlens_off_by_one", "boundary_shifted", "", "lengths = [32, 16, 80]",
     "cp_size = 4\nlayout = \"contiguous\""},
    {"interior_padding_taken_for_a_tail", "padding_taken_for_tail", "",
     "lengths = [21, 30]\nslots = [32, 32]", "cp_size = 4\nlayout = \"contiguous\""},
    {"window_turned_round", "window_reversed",
     "attn_mask_type = \"no_mask\"\nwindow_size = [9, 2]\n"},
    {"lengths_divided_and_rounded_down", "lengths_rounded_down", "", "", kChunks},
    {"sequence_sharded_twice", "sharded_twice", "", "lengths = [64]",
     "cp_comm_type = \"p2p\"\nlayout = \"dual_chunk\""},
    {"window_anchored_at_the_wrong_corner", "window_at_wrong_corner", kTwoSided, "lengths = [64]",
     kGatherOfTwo},
    {"window_of_the_longest_slot", "window_of_longest_slot", kTwoSided,
     "lengths = [64, 33]\nslots = [64, 40]", kGatherOfTwo},
    {"keys_read_at_unpadded_offsets", "keys_at_unpadded_offsets", "", "lengths = [41, 30, 29]",
     kGatherOfTwo},
    {"chunks_inside_a_half_joined", "chunks_joined", "chunk_size = 4\n", "lengths = [64]",
     "cp_size = 2\ncp_comm_type = \"p2p\"\nlayout = \"dual_chunk\""},
    {"layout_written_one_way_read_another", "other_layout", "", "", kChunks},
    {"layout_as_the_docstring_says", "other_layout", "attn_mask_type = \"causal\"\n", "",
     "cp_size = 4\nlayout = \"dual_chunk\""},
    {"short_sequence_not_balanced", "other_layout", "attn_mask_type = \"causal\"\n",
     "lengths = [5, 40]", "cp_size = 4\nlayout = \"dual_chunk\""},
    {"second_sample_misread", "batch_transposed", "",
     "qkv_format = \"bshd\"\nbatch_size = 2\nseqlen = 48", kChunks},
    {"packing_of_another_cp_size", "packed_for_fewer_ranks", "", "lengths = [57, 30, 97]",
     "cp_size = 4\nlayout = \"dual_chunk\""},
    {"partials_of_two_owners_exchanged", "ranks_exchanged", "", "",
     "cp_size = 4\ncp_comm_type = \"pass_q\"\nlayout = \"dual_chunk\""},
    {"outer_hop_posted_after_the_inner_ring", "stale_keys_sent", "", "lengths = [97, 48]",
     "cp_size = 6\ncp_comm_type = \"double_ring\"\nring_window = 2"},
    {"dq_of_a_ring_lost_on_its_way", "partial_missing", "", "",
     "cp_size = 4\ncp_comm_type = \"p2p\"\nring_backward = \"q\""},
    {"last_round_of_a_tree_left_out", "partial_missing", kBottomRight,
     "lengths = [2, 1, 1]\nkv_lengths = [61, 30, 97]",
     "cp_size = 4\ncp_comm_type = \"gather_q\"\nlayout = \"contiguous\"\nq_owner = "
     "\"heads\"\ncombine = \"tree\"",
     kForward},
    {"group_of_fewer_ranks", "rank_alone", "", "lengths = [64, 30, 17]",
     "cp_size = 4\ncp_sizes = [4, 2, 1]\ncp_comm_type = \"p2p\"\nlayout = \"dual_chunk\""},
    {"drafts_masked_by_local_length", "mask_by_local_place", kBottomRight,
     "lengths = [4]\nkv_lengths = [48]", kDecoder, kForward},
    {"local_length_one_too_long", "local_length_too_long", kBottomRight,
     "lengths = [1]\nkv_lengths = [45]\nkv_slots = [56]", kDecoder, kForward},
    {"lse_of_padding_not_cleared", "empty_rows_merged", "attn_mask_type = \"causal\"\n", "",
     "cp_size = 4\ncp_comm_type = \"p2p\"\nlayout = \"dual_chunk\""},
    {"padding_rows_not_cleared", "padding_not_cleared", "", "lengths = [41, 30, 29]", kChunks},
    {"sink_gradient_added_over_ranks", "factor", "softmax_type = \"learnable\"\n", "",
     "cp_size = 4\ncp_comm_type = \"a2a\""},
};

/// The fault in one of its places.
std::optional<PlantedFault> plant_somewhere(const Fault& fault, const Plan& plan) {
  if (fault.plant_in_all_places == nullptr) return fault.plant(plan);
  std::vector<PlantedFault> places;
  fault.plant_in_all_places(plan, [&](PlantedFault planted) {
    places.push_back(std::move(planted));
    return true;
  });
  if (places.empty()) return std::nullopt;
  return std::move(places[plan.scenario.numerics.seed % places.size()]);
}

}  // namespace

const Fault& fault_called(const std::string& name) {
  const auto faults = fault_catalogue();
  return *std::find_if(faults.begin(), faults.end(),
                       [&](const Fault& one) { return one.name == name; });
}

Answer run_planted(const Fault& fault, const Plan& plan, const RunInputs& inputs) {
  PlantedFault planted = plant_somewhere(fault, plan).value_or(PlantedFault{});
  RunInputs given = inputs;
  if (planted.inputs) planted.inputs(given);
  const CheckedPlan carried_out = admit_faulty_plan(planted.plan.value_or(plan), planted.what);
  const auto walker = reference::make_watched_walker({.fault = planted.mistake});
  return walker->run(carried_out, given, {.poison = fault.poison}).value().answer;
}

std::vector<PlantedMistake> planted_faults() {
  std::vector<PlantedMistake> all;
  for (const GalleryMistake& mistake : kGallery)
    all.push_back(
        {.name = mistake.fault,
         .cause = mistake.cause,
         .attention = mistake.attention,
         .batch = mistake.batch,
         .parallel = mistake.parallel,
         .plant = [&fault = fault_called(mistake.fault)](
                      const Plan& plan,
                      const RunInputs& inputs) { return run_planted(fault, plan, inputs); },
         .numerics = mistake.numerics});
  return all;
}

}  // namespace cpscope::tests
