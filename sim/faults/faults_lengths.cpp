#include "sim/faults/catalogue_parts.h"
#include "sim/faults/plan_edits.h"
#include "sim/plan/band.h"
#include "sim/plan/planner/planner.h"
#include "sim/plan/token_run.h"

#include <algorithm>
#include <functional>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// True if the inputs of a batch mean the same for other lengths of its documents. Biases, masks of
/// slices, given positions and a framework's own draws are stored by document.
bool may_have_other_lengths(const Scenario& scenario) {
  return scenario.attention.bias == BiasShape::none &&
         scenario.attention.mask_type != MaskType::slices && scenario.batch.q_positions.empty() &&
         scenario.batch.kv_positions.empty() &&
         scenario.attention.dropout_mode == DropoutMode::split_invariant;
}

/// The plan that the executor would get for another scenario with the same buffers. The site is the
/// first item whose slices differ.
std::optional<PlantedFault> plant_scenario(const Plan& healthy, const Scenario& scenario,
                                           std::string what) {
  if (scenario == healthy.scenario) return std::nullopt;
  const Batch &given = healthy.scenario.batch, &taken = scenario.batch;
  const bool has_other_lengths =
      given.lengths != taken.lengths || given.kv_lengths != taken.kv_lengths;
  if (has_other_lengths && !may_have_other_lengths(healthy.scenario)) return std::nullopt;
  Result<Plan> planned = make_plan(scenario);
  if (!planned) return std::nullopt;
  Plan plan = std::move(planned).value();
  const size_t items = std::min(healthy.forward.computes.size(), plan.forward.computes.size());
  for (size_t i = 0; i < items; ++i) {
    const ComputeItem &right = healthy.forward.computes[i], &wrong = plan.forward.computes[i];
    const auto a = healthy.slices_of(right), b = plan.slices_of(wrong);
    if (std::equal(a.begin(), a.end(), b.begin(), b.end())) continue;
    return PlantedFault{
        .site = forward_site(StageKind::compute, right.rank, right.step, static_cast<int64_t>(i)),
        .what = std::move(what),
        .plan = std::move(plan)};
  }
  return std::nullopt;
}

/// A scenario with other lengths, while every slot stays in place.
Scenario with_lengths(const Plan& healthy, const std::function<int64_t(const SequenceSlot&)>& q,
                      const std::function<int64_t(const SequenceSlot&)>& kv) {
  Scenario scenario = healthy.scenario;
  Batch& batch = scenario.batch;
  batch.generator.reset();
  for (size_t s = 0; s < healthy.layout.slots.sequences.size(); ++s) {
    const SequenceSlot& slot = healthy.layout.slots.sequences[s];
    batch.lengths[s] = q(slot);
    batch.kv_lengths[s] = kv(slot);
    batch.slots[s] = slot.q_slot;
    batch.kv_slots[s] = slot.kv_slot;
  }
  batch.self_attention = batch.lengths == batch.kv_lengths && batch.slots == batch.kv_slots;
  return scenario;
}

/// The same number of sequences, cut at other places; no padding. For layouts that split the whole
/// buffer.
Scenario with_documents(const Plan& healthy, std::vector<int64_t> lengths) {
  Scenario scenario = healthy.scenario;
  Batch& batch = scenario.batch;
  batch.lengths = batch.kv_lengths = batch.slots = batch.kv_slots = std::move(lengths);
  return scenario;
}

std::optional<PlantedFault> plant_no_documents(const Plan& healthy) {
  int64_t total = 0;
  for (const int64_t length : healthy.scenario.batch.lengths) total += length;
  if (healthy.scenario.batch.lengths.size() < 2) return std::nullopt;
  return plant_scenario(healthy, with_documents(healthy, {total}),
                        "all documents are taken for one");
}

/// The boundary after a document is one token further, or one token (`by` = -1) before.
std::optional<PlantedFault> move_boundary(const Plan& healthy, size_t document, int64_t by) {
  std::vector<int64_t> lengths = healthy.scenario.batch.lengths;
  if (lengths.size() < document + 2 || lengths != healthy.scenario.batch.kv_lengths)
    return std::nullopt;
  lengths[document] += by;
  lengths[document + 1] -= by;
  if (lengths[document] < 1 || lengths[document + 1] < 1) return std::nullopt;
  return plant_scenario(healthy, with_documents(healthy, lengths),
                        fmt::format("document {} is taken to be one token {}", document,
                                    by > 0 ? "longer" : "shorter"));
}
std::optional<PlantedFault> plant_boundary_off(const Plan& healthy) {
  return move_boundary(healthy, 0, 1);
}
void plant_all_boundaries_off(const Plan& healthy, const TakePlanted& take) {
  for (size_t document = 0; document + 1 < healthy.scenario.batch.lengths.size(); ++document) {
    for (const int64_t by : {1, -1})
      if (!offer(move_boundary(healthy, document, by), take)) return;
  }
}

std::optional<PlantedFault> plant_even_lengths(const Plan& healthy) {
  const Scenario scenario = with_lengths(
      healthy, [](const SequenceSlot& slot) { return slot.q_valid / 2 * 2; },
      [](const SequenceSlot& slot) { return slot.kv_valid / 2 * 2; });
  if (scenario.batch.lengths == healthy.scenario.batch.lengths) return std::nullopt;
  return plant_scenario(healthy, scenario, "odd lengths lose their last token");
}

std::optional<PlantedFault> plant_floored(const Plan& healthy, int64_t multiple) {
  const Scenario scenario = with_lengths(
      healthy, [&](const SequenceSlot& slot) { return slot.q_valid / multiple * multiple; },
      [&](const SequenceSlot& slot) { return slot.kv_valid / multiple * multiple; });
  if (scenario.batch.lengths == healthy.scenario.batch.lengths) return std::nullopt;
  return plant_scenario(healthy, scenario,
                        fmt::format("tokens beyond a multiple of {} are dropped", multiple));
}
std::optional<PlantedFault> plant_floored_to_ranks(const Plan& healthy) {
  return plant_floored(healthy, healthy.layout.cp_size);
}
std::optional<PlantedFault> plant_floored_to_chunks(const Plan& healthy) {
  return plant_floored(healthy, int64_t{2} * healthy.layout.cp_size);
}

std::optional<PlantedFault> plant_visible_padding(const Plan& healthy) {
  const Scenario scenario = with_lengths(
      healthy, [](const SequenceSlot& slot) { return slot.q_valid; },
      [](const SequenceSlot& slot) { return slot.kv_slot; });
  if (scenario.batch.kv_lengths == healthy.scenario.batch.kv_lengths) return std::nullopt;
  return plant_scenario(healthy, scenario, "padding keys count as keys");
}

std::optional<PlantedFault> plant_ignored_flag(const Plan& healthy) {
  const Scenario scenario = with_lengths(
      healthy, [](const SequenceSlot& slot) { return slot.q_slot; },
      [](const SequenceSlot& slot) { return slot.kv_slot; });
  if (scenario.batch.lengths == healthy.scenario.batch.lengths) return std::nullopt;
  return plant_scenario(healthy, scenario, "the batch is taken to have no padding");
}

std::optional<PlantedFault> plant_top_left(const Plan& healthy) {
  Scenario scenario = healthy.scenario;
  if (scenario.attention.mask_type != MaskType::causal_bottom_right) return std::nullopt;
  scenario.attention.mask_type = MaskType::causal;
  return plant_scenario(healthy, scenario, "the diagonal starts at the top left");
}

/// The length of the prefix is the keys' less the padded queries', never below 0; here it vanishes.
std::optional<PlantedFault> plant_lost_prefix(const Plan& healthy) {
  Scenario scenario = healthy.scenario;
  if (scenario.attention.mask_type != MaskType::causal_bottom_right) return std::nullopt;
  bool has_prefix = false;
  for (const SequenceSlot& slot : healthy.layout.slots.sequences) {
    if (slot.kv_valid > slot.q_slot) return std::nullopt;
    has_prefix = has_prefix || slot.kv_valid > slot.q_valid;
  }
  if (!has_prefix) return std::nullopt;
  scenario.attention.mask_type = MaskType::causal;
  return plant_scenario(healthy, scenario, "padding of the queries uses up the prefix");
}

/// Sequences are taken to follow one another without padding, and all padding to be at the end. For
/// layouts that split the whole buffer.
std::optional<PlantedFault> plant_padding_at_the_end(const Plan& healthy) {
  Scenario scenario = healthy.scenario;
  Batch& batch = scenario.batch;
  if (batch.lengths != batch.kv_lengths) return std::nullopt;
  int64_t rest = healthy.layout.slots.tokens;
  for (size_t s = 0; s < batch.lengths.size(); ++s) {
    const bool is_last = s + 1 == batch.lengths.size();
    batch.slots[s] = batch.kv_slots[s] = is_last ? rest : batch.lengths[s];
    rest -= batch.slots[s];
  }
  return plant_scenario(healthy, scenario, "padding between sequences is taken for a tail");
}

std::optional<PlantedFault> plant_no_window(const Plan& healthy) {
  Scenario scenario = healthy.scenario;
  scenario.attention.window_left = scenario.attention.window_right = -1;
  return plant_scenario(healthy, scenario, "the window is ignored");
}

std::optional<PlantedFault> plant_turned_window(const Plan& healthy) {
  Scenario scenario = healthy.scenario;
  std::swap(scenario.attention.window_left, scenario.attention.window_right);
  return plant_scenario(healthy, scenario, "left and right of the window are exchanged");
}

}  // namespace

std::vector<Fault> length_faults() {
  const std::string contiguous = "cp_size = 4\nlayout = \"contiguous\"";
  const std::string documents = "lengths = [32, 16, 80]";
  return {
      {.name = "cu_seqlens_ignored",
       .field_class = "8",
       .place = FaultPlace::inputs,
       .detector = Detector::count,
       .source = "volcengine/verl PR#6564",
       .wild = "After the split by ranks the boundaries of documents were lost and documents "
               "attended to each other; the loss was lower than it should be.",
       .scenario = scenario_text({.batch = documents, .parallel = contiguous}),
       .blind = BlindScenario{scenario_text({.batch = "lengths = [128]", .parallel = contiguous}),
                              "one document has no boundary to lose"},
       .plant = plant_no_documents},
      {.name = "cu_seqlens_off_by_one",
       .field_class = "9",
       .place = FaultPlace::inputs,
       .detector = Detector::count,
       .source = "PrimeIntellect-ai/prime-rl PR#2392",
       .wild = "Boundaries were not counted from the rank's own first token: a crash, or one token "
               "of the next document seen.",
       .scenario = scenario_text({.batch = documents, .parallel = contiguous}),
       .blind = BlindScenario{scenario_text({.batch = "lengths = [128]", .parallel = contiguous}),
                              "one document has no inner boundary"},
       .plant = plant_boundary_off,
       .cause = "boundary_shifted",
       .plant_in_all_places = plant_all_boundaries_off},
      {.name = "odd_last_token_lost",
       .field_class = "10",
       .place = FaultPlace::inputs,
       .detector = Detector::count,
       .source = "NVIDIA/TransformerEngine#1930",
       .wild = "7 tokens became 6. Two rows of 4096 were wrong by 0.014, within every tolerance.",
       .scenario = scenario_text({}),
       .blind = BlindScenario{scenario_text({.batch = "lengths = [60, 30, 96]"}),
                              "all lengths are even"},
       .plant = plant_even_lengths},
      {.name = "tokens_dropped_when_sharding",
       .field_class = "D9",
       .place = FaultPlace::inputs,
       .detector = Detector::count,
       .source = "NVIDIA/TransformerEngine#1931",
       .wild = "get_batch_on_this_cp_rank kept 4 of 7 tokens on two ranks and said nothing.",
       .scenario = scenario_text({}),
       .blind = BlindScenario{scenario_text({.batch = "lengths = [64, 32, 96]"}),
                              "all lengths divide by 2P"},
       .plant = plant_floored_to_chunks},
      {.name = "sequence_cut_to_fit_the_ranks",
       .field_class = "25",
       .place = FaultPlace::inputs,
       .detector = Detector::count,
       .source = "microsoft/DeepSpeed#7384",
       .wild = "A sequence that does not divide by the ranks was cut silently.",
       .scenario = scenario_text(
           {.batch = "lengths = [61]", .parallel = contiguous + "\ncp_comm_type = \"a2a\""}),
       .blind = BlindScenario{scenario_text({.batch = "lengths = [64]",
                                             .parallel = contiguous + "\ncp_comm_type = \"a2a\""}),
                              "the length divides by the ranks"},
       .plant = plant_floored_to_ranks},
      {.name = "padding_keys_visible",
       .field_class = "11",
       .place = FaultPlace::inputs,
       .detector = Detector::count,
       .source = "NVIDIA/TransformerEngine PR#1012",
       .wild = "Padding keys took part in the softmax; outputs were slightly too small.",
       .scenario = scenario_text({.attention = "attn_mask_type = \"padding\""}),
       .blind = BlindScenario{scenario_text({.attention = "attn_mask_type = \"padding\"",
                                             .batch = "lengths = [64, 32, 96]"}),
                              "there is no padding"},
       .plant = plant_visible_padding},
      {.name = "padding_flag_compared_with_a_string",
       .field_class = "11",
       .place = FaultPlace::inputs,
       .detector = Detector::output,
       .source = "NVIDIA/TransformerEngine PR#2993",
       .wild = "A flag was True and was compared with \"True\": every padded test ran without "
               "padding and passed.",
       .scenario = scenario_text({}),
       .blind =
           BlindScenario{scenario_text({.batch = "lengths = [64, 32, 96]"}), "there is no padding"},
       .plant = plant_ignored_flag},
      {.name = "top_left_for_bottom_right",
       .field_class = "17",
       .place = FaultPlace::inputs,
       .detector = Detector::count,
       .source = "Dao-AILab/flash-attention#380",
       .wild = "On a rectangle, causal meant the other corner; the second half of the rows was "
               "wrong.",
       .scenario = scenario_text({.attention = "attn_mask_type = \"causal_bottom_right\"",
                                  .batch = "lengths = [32]\nkv_lengths = [64]"}),
       .blind =
           BlindScenario{scenario_text({.attention = "attn_mask_type = \"causal_bottom_right\"",
                                        .batch = "lengths = [64]\nkv_lengths = [64]"}),
                         "a square has one diagonal"},
       .plant = plant_top_left},
      {.name = "prefix_length_lost_to_padding",
       .field_class = "45",
       .place = FaultPlace::inputs,
       .detector = Detector::count,
       .source = "sgl-project/sglang PR#23415",
       .wild = "1 cached and 3670 new tokens, padded to 3672: the prefix was reckoned as 3671 - "
               "3672, and clamped to 0.",
       .scenario = scenario_text({.attention = "attn_mask_type = \"causal_bottom_right\"",
                                  .batch = "lengths = [61]\nkv_lengths = [62]"}),
       .blind =
           BlindScenario{scenario_text({.attention = "attn_mask_type = \"causal_bottom_right\"",
                                        .batch = "lengths = [64]\nkv_lengths = [65]"}),
                         "the queries need no padding"},
       .plant = plant_lost_prefix},
      {.name = "interior_padding_taken_for_a_tail",
       .field_class = "48",
       .place = FaultPlace::inputs,
       .detector = Detector::count,
       .source = "NVIDIA-NeMo/Automodel PR#3640",
       .wild = "Rows [1, 1, 1, 0, 2, 2, 0, 0] of two documents on two ranks: padding between them "
               "was taken for padding at the end.",
       .scenario = scenario_text({.batch = "lengths = [3, 2]\nslots = [4, 4]",
                                  .parallel = "cp_size = 2\nlayout = \"contiguous\""}),
       .blind = BlindScenario{scenario_text({.batch = "lengths = [4, 2]\nslots = [4, 4]",
                                             .parallel = "cp_size = 2\nlayout = \"contiguous\""}),
                              "all padding is at the end"},
       .plant = plant_padding_at_the_end,
       .cause = "padding_taken_for_tail"},
      {.name = "window_ignored",
       .field_class = "30",
       .place = FaultPlace::inputs,
       .detector = Detector::count,
       .source = "PrimeIntellect-ai/prime-rl PR#2828",
       .wild = "Under context parallelism the sliding window was dropped and layers saw the whole "
               "past.",
       .scenario = scenario_text({.attention = "window_size = [16, 0]"}),
       .blind = BlindScenario{scenario_text({.attention = "window_size = [-1, -1]"}),
                              "the window is unbounded"},
       .plant = plant_no_window},
      {.name = "window_turned_round",
       .field_class = "30",
       .place = FaultPlace::inputs,
       .detector = Detector::count,
       .source = "open-lm-engine/lm-engine PR#447",
       .wild = "The two sides of the window changed places.",
       .scenario =
           scenario_text({.attention = "attn_mask_type = \"padding\"\nwindow_size = [9, 2]"}),
       .blind =
           BlindScenario{
               scenario_text({.attention = "attn_mask_type = \"padding\"\nwindow_size = [4, 4]"}),
               "both sides are as long"},
       .plant = plant_turned_window,
       .cause = "window_reversed"},
  };
}

}  // namespace cpscope
