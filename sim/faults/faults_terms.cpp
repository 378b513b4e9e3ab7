#include "sim/faults/catalogue_parts.h"
#include "sim/faults/plan_edits.h"

#include <utility>

namespace cpscope {
namespace {

/// A mistake of the computes of one direction that meet the condition: its first effect is in the
/// first of them.
template <class Meets>
std::optional<PlantedFault> plant_in_terms(const Plan& healthy, Direction direction,
                                           Mistake mistake, std::string what, Meets meets) {
  const std::vector<ComputeItem>& items = healthy.pass(direction).computes;
  auto index =
      find_item(items, [&](const ComputeItem& item) { return item.num_slices > 0 && meets(item); });
  // Where no item meets the condition, the mistake changes nothing.
  if (!index) index = find_item(items, [](const ComputeItem& item) { return item.num_slices > 0; });
  if (!index) return std::nullopt;
  const ComputeItem& item = items[static_cast<size_t>(*index)];
  return PlantedFault{.site = {{direction, StageKind::compute, *index}, item.rank, item.step},
                      .what = std::move(what),
                      .mistake = plant_mistake(mistake, {})};
}

/// True if the tile's rows or columns are not the first tokens of one sequence.
bool begins_late(const Plan& plan, RunListId tokens) {
  const auto runs = plan.list(tokens);
  return runs.empty() || runs.front().begin > 0 || runs.size() > 1;
}

std::optional<PlantedFault> plant_local_distances(const Plan& healthy) {
  return plant_in_terms(
      healthy, Direction::forward, Mistake::alibi_by_tile_row,
      "ALiBi measures distances between rows of the tile", [&](const ComputeItem& item) {
        return begins_late(healthy, item.q_tokens) || begins_late(healthy, item.kv_tokens);
      });
}

std::optional<PlantedFault> plant_packed_distances(const Plan& healthy) {
  return plant_in_terms(
      healthy, Direction::forward, Mistake::alibi_across_documents,
      "ALiBi numbers queries through the packed batch and keys in the document",
      [&](const ComputeItem& item) { return begins_late(healthy, item.q_tokens); });
}

std::optional<PlantedFault> plant_local_heads(const Plan& healthy) {
  return plant_in_terms(healthy, Direction::forward, Mistake::terms_by_local_head,
                        "every rank numbers its heads from 0 for the slopes of ALiBi",
                        [](const ComputeItem& item) { return item.heads.begin > 0; });
}

std::optional<PlantedFault> plant_local_dropout_heads(const Plan& healthy) {
  return plant_in_terms(healthy, Direction::forward, Mistake::terms_by_local_head,
                        "every rank numbers its heads from 0 for the draws of dropout",
                        [](const ComputeItem& item) { return item.heads.begin > 0; });
}

std::optional<PlantedFault> plant_local_bias_columns(const Plan& healthy) {
  return plant_in_terms(
      healthy, Direction::forward, Mistake::bias_by_tile_column,
      "the columns of the bias are taken in the order of the received keys",
      [&](const ComputeItem& item) { return begins_late(healthy, item.kv_tokens); });
}

std::optional<PlantedFault> plant_same_draws(const Plan& healthy) {
  return plant_in_terms(
      healthy, Direction::forward, Mistake::dropout_by_tile_column,
      "every step draws the dropped weights with the same offset",
      [&](const ComputeItem& item) { return begins_late(healthy, item.kv_tokens); });
}

std::optional<PlantedFault> plant_redrawn(const Plan& healthy) {
  return plant_in_terms(healthy, Direction::backward, Mistake::dropout_redrawn,
                        "backward draws the dropped weights anew",
                        [](const ComputeItem&) { return true; });
}

std::optional<PlantedFault> plant_scaled_twice(const Plan& healthy) {
  return plant_in_terms(healthy, Direction::forward, Mistake::dropout_scaled_twice,
                        "kept weights are divided by the kept share twice",
                        [](const ComputeItem&) { return true; });
}

std::optional<PlantedFault> plant_dropped_sums(const Plan& healthy) {
  return plant_in_terms(healthy, Direction::forward, Mistake::dropout_before_softmax,
                        "the softmax sums only the kept weights",
                        [](const ComputeItem&) { return true; });
}

}  // namespace

std::vector<Fault> term_faults() {
  const std::string a2a = "cp_size = 4\ncp_comm_type = \"a2a\"";
  const BlindScenario no_alibi{scenario_text({}), "there is no ALiBi"},
      no_dropout{scenario_text({}), "no weight is dropped"};
  const std::string dropout = "dropout = 0.2";
  return {
      {.name = "alibi_distances_of_the_tile",
       .field_class = "50",
       .place = FaultPlace::executor,
       .detector = Detector::output,
       .source = "Dao-AILab/flash-attention, csrc alibi.h",
       .wild =
           "The kernel measures distances between rows of its own call. In a ring every tile is "
           "a call, so log-sum-exps of tiles are not comparable and the merge is wrong.",
       .scenario = scenario_text({.attention = "alibi = true"}),
       .blind = no_alibi,
       .plant = plant_local_distances},
      {.name = "alibi_distances_across_documents",
       .field_class = "51",
       .place = FaultPlace::executor,
       .detector = Detector::output,
       .source = "arXiv:2108.12409 with packed sequences",
       .wild = "Positions of queries did not restart in each document: far keys won.",
       .scenario = scenario_text({.attention = "alibi = true"}),
       .blind =
           BlindScenario{scenario_text({.attention = "alibi = true", .batch = "lengths = [96]"}),
                         "the batch is one sequence"},
       .plant = plant_packed_distances},
      {.name = "alibi_slopes_of_local_heads",
       .field_class = "52",
       .place = FaultPlace::executor,
       .detector = Detector::output,
       .source = "arXiv:2309.14509 (Ulysses) with arXiv:2108.12409 (ALiBi)",
       .wild = "After the exchange of heads every rank used the slopes of heads 0, 1, ...",
       .scenario = scenario_text({.attention = "alibi = true", .parallel = a2a}),
       .blind = BlindScenario{scenario_text({.attention = "alibi = true"}),
                              "every rank computes all heads"},
       .plant = plant_local_heads},
      {.name = "bias_columns_by_received_row",
       .field_class = "53",
       .place = FaultPlace::executor,
       .detector = Detector::output,
       .source = "NVIDIA/TransformerEngine@d0067d0d, bias in the ring",
       .wild = "Each rank keeps its rows of the bias with all columns in global order; a tile that "
               "reads them in the order of the received keys adds other keys' bias.",
       .scenario = scenario_text({.attention = "bias = \"1hss\""}),
       .blind = BlindScenario{scenario_text({}), "there is no bias"},
       .plant = plant_local_bias_columns},
      {.name = "dropout_same_offset_in_every_step",
       .field_class = "54",
       .place = FaultPlace::executor,
       .detector = Detector::output,
       .source = "Dao-AILab/flash-attention, philox offset of a call",
       .wild = "With one offset for all steps every step dropped the same places of its tile.",
       .scenario = scenario_text({.attention = dropout}),
       .blind = no_dropout,
       .plant = plant_same_draws},
      {.name = "dropout_redrawn_in_backward",
       .field_class = "55",
       .place = FaultPlace::executor,
       .detector = Detector::gradient,
       .source = "NVIDIA/TransformerEngine@d0067d0d, rng_states of a step",
       .wild =
           "The backward used another offset than the forward: out is right, and no gradient is.",
       .scenario = scenario_text({.attention = dropout}),
       .blind = no_dropout,
       .plant = plant_redrawn},
      {.name = "dropout_scaled_twice",
       .field_class = "56",
       .place = FaultPlace::executor,
       .detector = Detector::output,
       .source = "Dao-AILab/flash-attention, rp_dropout",
       .wild = "The kernel scaled kept weights, and its caller once more.",
       .scenario = scenario_text({.attention = dropout}),
       .blind = no_dropout,
       .plant = plant_scaled_twice},
      {.name = "dropout_before_the_softmax",
       .field_class = "57",
       .place = FaultPlace::executor,
       .detector = Detector::output,
       .source = "arXiv:1706.03762, 5.4: dropout after the softmax",
       .wild = "Dropped weights were left out of the row sum too: lse, and with it every merge, "
               "depends on the draw.",
       .scenario = scenario_text({.attention = dropout}),
       .blind = no_dropout,
       .plant = plant_dropped_sums},
      {.name = "dropout_heads_numbered_from_zero",
       .field_class = "58",
       .place = FaultPlace::executor,
       .detector = Detector::output,
       .source = "arXiv:2309.14509 (Ulysses) with dropout",
       .wild =
           "Every rank drew for heads 0, 1, ...: heads of different ranks dropped the same keys.",
       .scenario = scenario_text({.attention = dropout, .parallel = a2a}),
       .blind =
           BlindScenario{scenario_text({.attention = dropout}), "every rank computes all heads"},
       .plant = plant_local_dropout_heads},
  };
}

}  // namespace cpscope
