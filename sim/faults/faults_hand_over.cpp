#include "sim/faults/catalogue_parts.h"
#include "sim/plan/layout.h"
#include "sim/plan/token_run.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// Moves rows: row `token` of the result is row from[token] of the tensor.
void take_rows(const std::vector<int64_t>& from, Tensor& tensor) {
  if (tensor.values.empty()) return;
  const std::vector<double> given = tensor.values;
  const int64_t width = tensor.shape[1] * tensor.shape[2];
  for (int64_t token = 0; token < tensor.shape[0]; ++token)
    std::copy_n(given.data() + from[token] * width, width, tensor.values.data() + token * width);
}

/// Takes every row of q, k, v and d_out from another place; self attention.
std::function<void(RunInputs&)> hand_over_from(std::vector<int64_t> from) {
  return [from = std::move(from)](RunInputs& inputs) {
    for (Tensor* tensor : {&inputs.q, &inputs.k, &inputs.v, &inputs.d_out})
      take_rows(from, *tensor);
  };
}

FaultSite input_site(RankId rank) {
  return {.item = {.kind = StageKind::transfer}, .rank = rank, .is_load = true};
}

/// The first rank that holds a row which came from elsewhere.
std::optional<FaultSite> first_changed_rank(const Plan& plan, const std::vector<int64_t>& from) {
  for (const RankId rank : plan.q_lists.ids()) {
    for (const int64_t token : expand(plan.list(plan.q_lists[rank]))) {
      if (from[token] != token) return input_site(rank);
    }
  }
  return std::nullopt;
}

/// True if queries and keys are rows of the same tokens.
bool is_self_attention(const Plan& plan) {
  const auto& slots = plan.layout.slots.sequences;
  return plan.layout.same_kv && plan.layout.q_heads.size() == 0 &&
         std::all_of(slots.begin(), slots.end(), [](const SequenceSlot& slot) {
           return slot.q_begin == slot.kv_begin && slot.q_slot == slot.kv_slot &&
                  slot.q_valid == slot.kv_valid;
         });
}
/// The same, if every rank owns two of 2P chunks of each sequence.
bool is_cut_in_chunks(const Plan& plan) {
  return is_self_attention(plan) && plan.layout.kind == LayoutKind::dual_chunk &&
         plan.layout.rounds.empty();
}

std::optional<PlantedFault> plant_rows_from(const Plan& healthy, std::vector<int64_t> from,
                                            std::string what) {
  if (!is_self_attention(healthy)) return std::nullopt;
  const auto site = first_changed_rank(healthy, from);
  if (!site) return std::nullopt;
  return PlantedFault{
      .site = *site, .what = std::move(what), .inputs = hand_over_from(std::move(from))};
}

/// The identity: every row from its own place.
std::vector<int64_t> rows_as_they_are(const Plan& plan) {
  std::vector<int64_t> from(static_cast<size_t>(plan.layout.slots.tokens));
  std::iota(from.begin(), from.end(), int64_t{0});
  return from;
}

/// Rank r gets the r-th part of the packed buffer and treats it as its own part of the layout.
std::optional<PlantedFault> plant_written_contiguous(const Plan& healthy) {
  if (!is_self_attention(healthy)) return std::nullopt;
  std::vector<int64_t> from = rows_as_they_are(healthy);
  int64_t next = 0;
  for (const RunListId list : healthy.q_lists) {
    for (const int64_t token : expand(healthy.list(list))) from[token] = next++;
  }
  return plant_rows_from(healthy, std::move(from),
                         "each rank was handed its part of a contiguous layout and takes it for "
                         "its part of this one");
}

/// Rank r gets chunks 2r and 2P-1-2r of each sequence, instead of r and 2P-1-r.
std::optional<PlantedFault> plant_docstring_layout(const Plan& healthy) {
  if (!is_cut_in_chunks(healthy)) return std::nullopt;
  std::vector<int64_t> from = rows_as_they_are(healthy);
  const int64_t ranks = healthy.layout.cp_size, chunks = 2 * ranks;
  for (const SequenceSlot& slot : healthy.layout.slots.sequences) {
    const int64_t size = slot.q_slot / chunks;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      for (int64_t i = 0; i < size; ++i) {
        from[slot.q_begin + rank * size + i] = slot.q_begin + 2 * rank * size + i;
        from[slot.q_begin + (chunks - 1 - rank) * size + i] =
            slot.q_begin + (chunks - 1 - 2 * rank) * size + i;
      }
    }
  }
  return plant_rows_from(healthy, std::move(from),
                         "rank r was handed chunks 2r and 2P-1-2r of each sequence");
}

/// Sequences shorter than 2P are split without balancing.
std::optional<PlantedFault> plant_short_unbalanced(const Plan& healthy) {
  if (!is_cut_in_chunks(healthy)) return std::nullopt;
  std::vector<int64_t> from = rows_as_they_are(healthy);
  const int64_t ranks = healthy.layout.cp_size, chunks = 2 * ranks;
  for (const SequenceSlot& slot : healthy.layout.slots.sequences) {
    if (slot.q_valid >= chunks || slot.q_slot != chunks) continue;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      from[slot.q_begin + rank] = slot.q_begin + 2 * rank;
      from[slot.q_begin + chunks - 1 - rank] = slot.q_begin + 2 * rank + 1;
    }
  }
  return plant_rows_from(healthy, std::move(from),
                         "sequences shorter than 2P gave every rank two neighbours");
}

/// A buffer of several samples, written [sequence, batch] and read [batch, sequence].
std::optional<PlantedFault> plant_batch_transposed(const Plan& healthy) {
  std::vector<int64_t> from = rows_as_they_are(healthy);
  const auto samples = static_cast<int64_t>(healthy.layout.slots.sequences.size());
  const int64_t length = healthy.layout.slots.sequences.front().q_slot;
  if (samples * length != healthy.layout.slots.tokens) return std::nullopt;
  for (int64_t row = 0; row < samples * length; ++row)
    from[row] = (row % samples) * length + row / samples;
  return plant_rows_from(healthy, std::move(from),
                         "the batch was written [sequence, batch] and is read [batch, sequence]");
}

/// Sequences were packed with the padding of half as many ranks.
std::optional<PlantedFault> plant_cached_packing(const Plan& healthy) {
  if (!is_cut_in_chunks(healthy)) return std::nullopt;
  std::vector<int64_t> from = rows_as_they_are(healthy);
  int64_t next = 0;
  for (const SequenceSlot& slot : healthy.layout.slots.sequences) {
    const int64_t multiple = healthy.layout.cp_size;
    const int64_t packed = (slot.q_valid + multiple - 1) / multiple * multiple;
    for (int64_t i = 0; i < packed; ++i) from[next++] = slot.q_begin + i;
  }
  return plant_rows_from(healthy, std::move(from),
                         "the batch was packed for half as many ranks, with less padding");
}

std::optional<PlantedFault> plant_positions(const Plan& healthy, Mistake mistake, RankId first,
                                            std::string what) {
  if (healthy.scenario.attention.rope_theta == 0 || healthy.layout.cp_size == 1)
    return std::nullopt;
  return PlantedFault{
      .site = input_site(first), .what = std::move(what), .mistake = plant_mistake(mistake, {})};
}

/// Rank 0 holds the first chunk, where both positions are the same, and the last one.
std::optional<PlantedFault> plant_local_positions(const Plan& healthy) {
  return plant_positions(healthy, Mistake::local_positions, RankId{0},
                         "positions count the rows of the rank's own buffer");
}
std::optional<PlantedFault> plant_following_positions(const Plan& healthy) {
  return plant_positions(healthy, Mistake::second_half_follows_on, RankId{0},
                         "positions of the second chunk go on where the first chunk ended");
}

/// UPipe's stages with the heads in natural order: stage s of rank r takes query head s * P + r and
/// the KV head that the rank holds then.
std::optional<PlantedFault> plant_stages_in_natural_order(const Plan& healthy) {
  const Attention& attention = healthy.scenario.attention;
  const int32_t ranks = healthy.layout.cp_size;
  const bool is_possible = healthy.scenario.parallel.heads_per_stage == 1 &&
                           attention.heads % ranks == 0 && attention.kv_heads % ranks == 0;
  if (!is_possible || attention.heads == ranks || ranks == 1) return std::nullopt;
  return PlantedFault{.site = input_site(RankId{0}),
                      .what =
                          "a stage takes the next query heads, of which most read another KV "
                          "head than the rank holds",
                      .mistake = plant_mistake(Mistake::heads_in_stage_order, {})};
}

}  // namespace

std::vector<Fault> hand_over_faults() {
  const std::string rope = "rope_theta = 10000.0";
  const BlindScenario no_rope{scenario_text({}), "there is no rotary embedding"};
  return {
      {.name = "layout_written_one_way_read_another",
       .field_class = "1",
       .place = FaultPlace::inputs,
       .detector = Detector::keys,
       .source = "THUDM/slime#1871",
       .wild = "One library split tokens contiguously, the next took them for zigzag. Shapes fit, "
               "the loss was a bit high, log-probabilities did not line up.",
       .scenario = scenario_text({}),
       .blind = BlindScenario{scenario_text({.parallel = "cp_size = 4\nlayout = \"contiguous\""}),
                              "the layout is the contiguous one"},
       .plant = plant_written_contiguous,
       .cause = "other_layout",
       .layout = "contiguous"},
      {.name = "layout_as_the_docstring_says",
       .field_class = "D12",
       .place = FaultPlace::inputs,
       .detector = Detector::keys,
       .source = "NVIDIA/TransformerEngine@d0067d0d",
       .wild = "The JAX enum's example puts tokens 4, 5, 10, 11 on rank 1; the code puts 2, 3, 12, "
               "13 there. Code that follows the example has another layout.",
       .scenario = scenario_text({.batch = "lengths = [64]"}),
       .blind = BlindScenario{scenario_text({.batch = "lengths = [64]", .parallel = "cp_size = 1"}),
                              "one rank holds everything"},
       .plant = plant_docstring_layout,
       .cause = "other_layout",
       .layout = "chunks 2r and 2P-1-2r"},
      {.name = "short_sequence_not_balanced",
       .field_class = "42",
       .place = FaultPlace::inputs,
       .detector = Detector::keys,
       .source = "pytorch/pytorch#159706",
       .wild = "A sequence too short for 2P chunks fell back to another cut, on one side only.",
       .scenario = scenario_text({.batch = "lengths = [5, 40]"}),
       .blind = BlindScenario{scenario_text({.batch = "lengths = [40]"}),
                              "no sequence is shorter than 2P"},
       .plant = plant_short_unbalanced,
       .cause = "other_layout",
       .layout = "contiguous below 2P tokens"},
      {.name = "second_sample_misread",
       .field_class = "35",
       .place = FaultPlace::inputs,
       .detector = Detector::keys,
       .source = "NVIDIA/NeMo#12210",
       .wild = "Context parallelism worked with one sample a batch and diverged with two.",
       .scenario = scenario_text({.batch = "qkv_format = \"bshd\"\nbatch_size = 2\nseqlen = 64"}),
       .blind = BlindScenario{scenario_text(
                                  {.batch = "qkv_format = \"bshd\"\nbatch_size = 1\nseqlen = 64"}),
                              "one sample reads the same both ways"},
       .plant = plant_batch_transposed,
       .cause = "batch_transposed"},
      {.name = "packing_of_another_cp_size",
       .field_class = "37",
       .place = FaultPlace::inputs,
       .detector = Detector::keys,
       .source = "NVIDIA-NeMo/Megatron-Bridge PR#1867",
       .wild =
           "A packed data set was cached with the padding of one cp_size and read with another.",
       .scenario = scenario_text({.batch = "lengths = [57, 30, 97]"}),
       .blind = BlindScenario{scenario_text({.batch = "lengths = [64, 32, 96]"}),
                              "the lengths fit both sizes"},
       .plant = plant_cached_packing,
       .cause = "packed_for_fewer_ranks"},
      {.name = "stages_take_heads_in_natural_order",
       .field_class = "M7",
       .place = FaultPlace::inputs,
       .detector = Detector::head,
       .source = "arXiv:2602.21196, untied-ulysses@e465aa8",
       .wild = "Stages take query heads and KV heads in the order of their numbers. A model that "
               "was trained so pairs them as it likes; of another one with 32 query and 8 KV heads "
               "on 8 ranks, 28 heads read a wrong KV head.",
       .scenario =
           scenario_text({.parallel = "cp_size = 2\ncp_comm_type = \"a2a\"\nheads_per_stage = 1"}),
       .blind = BlindScenario{scenario_text({.parallel = "cp_size = 4\ncp_comm_type = "
                                                         "\"a2a\"\nheads_per_stage = 1",
                                             .heads = "heads = 4\nkv_heads = 4\nhead_dim = 8"}),
                              "each rank holds one head"},
       .plant = plant_stages_in_natural_order},
      {.name = "rope_with_local_positions",
       .field_class = "20",
       .place = FaultPlace::inputs,
       .detector = Detector::position,
       .source = "NVIDIA/Megatron-LM#560",
       .wild = "Each rank rotated its rows as 0, 1, 2, ...; the loss was off, the more the more "
               "ranks. Counts and keys are right.",
       .scenario = scenario_text({.attention = rope}),
       .blind = no_rope,
       .plant = plant_local_positions},
      {.name = "rope_second_half_follows_the_first",
       .field_class = "20",
       .place = FaultPlace::inputs,
       .detector = Detector::position,
       .source = "NVIDIA/Megatron-LM PR#5243",
       .wild = "The second chunk of a zigzag rank was rotated as if it followed the first one.",
       .scenario = scenario_text({.attention = rope}),
       .blind = no_rope,
       .plant = plant_following_positions},
  };
}

}  // namespace cpscope
