#include "sim/faults/catalogue_parts.h"
#include "sim/faults/plan_edits.h"

#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// A mistake of every compute: its first effect is in the first one that has work.
std::optional<PlantedFault> plant_in_computes(const Plan& healthy, Mistake mistake,
                                              std::string what) {
  const auto& items = healthy.forward.computes;
  return plant_at(items,
                  find_item(items, [](const ComputeItem& item) { return item.num_slices > 0; }),
                  StageKind::compute, mistake, std::move(what));
}

/// A mistake of every merge of a second partial into an out.
std::optional<PlantedFault> plant_in_merges(const Plan& healthy, Mistake mistake,
                                            std::string what) {
  const auto& items = healthy.forward.merges;
  return plant_at(
      items,
      find_item(items,
                [](const MergeItem& item) { return item.order > 0 && item.partial != kNoBuffer; }),
      StageKind::merge, mistake, std::move(what));
}

/// A mistake of the finish items of one rank, or of all.
std::optional<PlantedFault> plant_in_finishes(const Plan& healthy, Mistake mistake,
                                              std::string what, std::optional<RankId> rank = {}) {
  const auto& items = healthy.forward.finishes;
  return plant_at(
      items,
      find_item(items,
                [&](const FinishItem& item) { return item.rank == rank.value_or(RankId{0}); }),
      StageKind::finish, mistake, std::move(what), {.rank = rank, .step = {}});
}

bool has_sink(const Plan& plan) {
  return plan.scenario.attention.softmax_type != SoftmaxType::vanilla;
}

/// The first rank that owns a padding row.
std::optional<RankId> first_rank_with_padding(const Plan& plan) {
  for (const RankId rank : plan.q_lists.ids()) {
    for (const TokenRun& run : plan.list(plan.q_lists[rank])) {
      for (int64_t token = run.begin; token < run.end; token += run.stride) {
        bool is_valid = false;
        for (const SequenceSlot& slot : plan.layout.slots.sequences)
          is_valid = is_valid || slot.side(Side::q).is_valid(token);
        if (!is_valid) return rank;
      }
    }
  }
  return std::nullopt;
}

std::optional<PlantedFault> plant_in_padding(const Plan& healthy, Mistake mistake,
                                             std::string what) {
  const RankId rank = first_rank_with_padding(healthy).value_or(RankId{0});
  const auto& items = healthy.forward.finishes;
  return plant_at(items,
                  find_item(items, [&](const FinishItem& item) { return item.rank == rank; }),
                  StageKind::finish, mistake, std::move(what));
}

std::optional<PlantedFault> plant_empty_merge(const Plan& healthy) {
  return plant_in_merges(healthy, Mistake::empty_merged_as_number,
                         "lse of rows that saw nothing, -inf, are subtracted from one another");
}

std::optional<PlantedFault> plant_plain_exp(const Plan& healthy) {
  return plant_in_merges(healthy, Mistake::merged_by_plain_exp,
                         "partial results are weighted with exp(lse)");
}

std::optional<PlantedFault> plant_other_base(const Plan& healthy) {
  return plant_in_merges(healthy, Mistake::merged_by_lse_base_2,
                         "partial results are weighted with exp of an lse to base 2");
}

std::optional<PlantedFault> plant_out_16(const Plan& healthy) {
  const auto& items = healthy.forward.merges;
  return plant_at(items,
                  find_item(items, [](const MergeItem& item) { return item.partial != kNoBuffer; }),
                  StageKind::merge, Mistake::out_summed_in_16_bits, "out is summed up in bf16");
}

std::optional<PlantedFault> plant_transposed_lse(const Plan& healthy) {
  return plant_in_computes(healthy, Mistake::lse_transposed,
                           "lse is written [row, head] and read [head, row]");
}

std::optional<PlantedFault> plant_head_modulo(const Plan& healthy) {
  return plant_in_computes(healthy, Mistake::kv_head_modulo,
                           "query head h reads kv head h mod kv_heads");
}

/// The first transfer of this payload that meets the condition, else the first one of this payload,
/// where the mistake changes nothing.
template <class Meets>
std::optional<PlantedFault> plant_in_transfers(const Plan& healthy, Payload payload,
                                               Mistake mistake, std::string what, Meets meets) {
  const auto& items = healthy.forward.transfers;
  auto index = find_item(
      items, [&](const TransferItem& item) { return item.payload == payload && meets(item); });
  if (!index)
    index = find_item(items, [&](const TransferItem& item) { return item.payload == payload; });
  return plant_at(items, index, StageKind::transfer, mistake, std::move(what));
}

std::optional<PlantedFault> plant_first_kv_head(const Plan& healthy) {
  return plant_in_transfers(healthy, Payload::kv, Mistake::first_kv_head_for_all,
                            "every rank is sent kv head 0",
                            [](const TransferItem& item) { return item.heads.begin > 0; });
}

std::optional<PlantedFault> plant_transposed_heads(const Plan& healthy) {
  return plant_in_transfers(healthy, Payload::q, Mistake::heads_transposed,
                            "queries land as [row, head] and are read as [head, row]",
                            [](const TransferItem& item) { return item.heads.size() > 1; });
}

std::optional<PlantedFault> plant_uncleared_rows(const Plan& healthy) {
  return plant_in_padding(healthy, Mistake::rows_not_cleared,
                          "rows of out that no tile writes keep what memory held");
}

std::optional<PlantedFault> plant_product_clearing(const Plan& healthy) {
  return plant_in_padding(healthy, Mistake::cleared_by_product,
                          "rows that see nothing are cleared by out * 0");
}

std::optional<PlantedFault> plant_uncleared_lse(const Plan& healthy) {
  return plant_in_computes(healthy, Mistake::lse_not_cleared,
                           "lse of rows that no tile writes keep what memory held");
}

std::optional<PlantedFault> plant_zeros(const Plan& healthy) {
  return plant_in_computes(healthy, Mistake::all_zero, "the kernel writes zeros for out");
}

std::optional<PlantedFault> plant_one_row(const Plan& healthy) {
  return plant_in_finishes(healthy, Mistake::one_row_off, "one row of rank 2 is 5 % too large",
                           RankId{2});
}

std::optional<PlantedFault> plant_no_sink(const Plan& healthy) {
  return plant_in_finishes(healthy, Mistake::sink_left_out, "the sink is left out of the merge");
}

std::optional<PlantedFault> plant_many_sinks(const Plan& healthy) {
  if (!has_sink(healthy) || healthy.layout.cp_size == 1) return std::nullopt;
  return plant_in_computes(healthy, Mistake::sink_in_every_partial,
                           "the sink enters with every partial result");
}

std::optional<PlantedFault> plant_shifted_lanes(const Plan& healthy) {
  const Attention& attention = healthy.scenario.attention;
  if (attention.head_dim_qk < attention.head_dim_v) return std::nullopt;
  return plant_in_finishes(healthy, Mistake::value_lanes_shifted,
                           "v is padded to head_dim_qk, and out cut at the wrong end");
}

std::optional<PlantedFault> plant_local_weights(const Plan& healthy) {
  if (!healthy.scenario.attention.expands_rows()) return std::nullopt;
  const auto& items = healthy.forward.computes;
  return plant_at(items,
                  find_item(items,
                            [](const ComputeItem& item) {
                              return item.num_slices > 0 && item.heads.begin > 0;
                            }),
                  StageKind::compute, Mistake::latent_weights_by_local_head,
                  "every rank expands latent rows with the weights of head 0 and those after it");
}

std::vector<Fault> merge_faults() {
  const BlindScenario one_rank{scenario_text({.parallel = "cp_size = 1"}), "nothing is merged"};
  return {
      {.name = "empty_rows_merge_to_nan",
       .field_class = "13, D8",
       .place = FaultPlace::executor,
       .detector = Detector::output,
       .source = "NVIDIA/Megatron-LM#1764",
       .wild = "A row that saw no key in two steps had lse -inf twice; their merge is NaN, and the "
               "loss was NaN on some ranks.",
       .scenario = scenario_text({}),
       .blind = BlindScenario{scenario_text({.attention = "attn_mask_type = \"no_mask\"",
                                             .batch = "lengths = [64]"}),
                              "every row sees keys in every step"},
       .plant = plant_empty_merge},
      {.name = "merge_overflows",
       .field_class = "14",
       .place = FaultPlace::executor,
       .detector = Detector::output,
       .source = "zhuzilin/ring-flash-attention#30",
       .wild = "Partials were weighted with exp(lse): inf and NaN late in training, when logits "
               "had grown.",
       .scenario = scenario_text({.attention = "softmax_scale = 30.0"}),
       .blind = one_rank,
       .plant = plant_plain_exp},
      {.name = "merged_with_lse_of_another_base",
       .field_class = "47",
       .place = FaultPlace::executor,
       .detector = Detector::output,
       .source = "vllm-project/vllm PR#47079",
       .wild = "The kernel returned lse to base 2 and the merge of the ranks' partial results took "
               "them for natural ones: larger parts weighed too much, and tokens differed from "
               "those of a run without context parallelism.",
       .scenario = scenario_text({}),
       .blind = one_rank,
       .plant = plant_other_base},
      {.name = "out_summed_in_16_bits",
       .field_class = "15, D10",
       .place = FaultPlace::executor,
       .detector = Detector::output,
       .source = "zhuzilin/ring-flash-attention#42",
       .wild = "Block results were added up in bf16; the error grew with the ranks.",
       .scenario = scenario_text({}),
       .blind = std::nullopt,
       .plant = plant_out_16},
      {.name = "sink_left_out_of_the_merge",
       .field_class = "31",
       .place = FaultPlace::executor,
       .detector = Detector::count,
       .source = "PrimeIntellect-ai/prime-rl PR#3397",
       .wild = "The sink was dropped under context parallelism; sinks that start at zero hid it.",
       .scenario = scenario_text({.attention = "softmax_type = \"learnable\""}),
       .blind = BlindScenario{scenario_text({}), "there is no sink"},
       .plant = plant_no_sink},
      {.name = "sink_counted_for_every_step",
       .field_class = "31",
       .place = FaultPlace::executor,
       .detector = Detector::output,
       .source = "NVIDIA/TransformerEngine PR#3551",
       .wild = "Each step's kernel let the sink in, and the merge counted it P times.",
       .scenario = scenario_text({.attention = "softmax_type = \"learnable\""}),
       .blind = BlindScenario{scenario_text({}), "there is no sink"},
       .plant = plant_many_sinks},
  };
}

std::vector<Fault> kernel_faults() {
  const std::string a2a = "cp_size = 4\ncp_comm_type = \"a2a\"";
  const std::string expanded =
      "heads = 4\nkv_heads = 1\nhead_dim_qk = 12\nhead_dim_v = 8\nlatent_dim = 24\n"
      "latent_nope_dim = 8";
  const BlindScenario no_padding{scenario_text({.batch = "lengths = [64, 32, 96]"}),
                                 "there is no padding"};
  return {
      {.name = "padding_rows_not_cleared",
       .field_class = "12",
       .place = FaultPlace::executor,
       .detector = Detector::output,
       .source = "NVIDIA/TransformerEngine PR#2596",
       .wild = "The kernel never writes rows of padding; out held whatever memory held, now and "
               "then NaN.",
       .scenario = scenario_text({}),
       .blind = no_padding,
       .plant = plant_uncleared_rows},
      {.name = "lse_of_padding_not_cleared",
       .field_class = "12, D7",
       .place = FaultPlace::executor,
       .detector = Detector::count,
       .source = "NVIDIA/TransformerEngine#3331",
       .wild = "Statistics of rows that a tile does not write held garbage and were merged: other "
               "results in every run.",
       .scenario = scenario_text({}),
       .blind = BlindScenario{scenario_text({.attention = "attn_mask_type = \"no_mask\"",
                                             .batch = "lengths = [64]"}),
                              "there is no padding"},
       .plant = plant_uncleared_lse},
      {.name = "cleared_by_multiplying_with_zero",
       .field_class = "13",
       .place = FaultPlace::executor,
       .detector = Detector::output,
       .source = "NVIDIA/NeMo#14488",
       .wild = "Padding rows were masked by a product; NaN times 0 is NaN.",
       .scenario = scenario_text({}),
       .blind = no_padding,
       .poison = true,
       .plant = plant_product_clearing},
      {.name = "lse_in_another_shape",
       .field_class = "16",
       .place = FaultPlace::executor,
       .detector = Detector::count,
       .source = "zhuzilin/ring-flash-attention#46",
       .wild =
           "The varlen kernel returned lse [head, row] where [row, head] was read: heads mixed, "
           "or an illegal access.",
       .scenario = scenario_text({}),
       .blind = BlindScenario{scenario_text({.heads = "heads = 1\nkv_heads = 1\nhead_dim = 8"}),
                              "one head has one order"},
       .plant = plant_transposed_lse},
      {.name = "heads_and_rows_transposed_in_exchange",
       .field_class = "24",
       .place = FaultPlace::executor,
       .detector = Detector::head,
       .source = "microsoft/DeepSpeed PR#5664",
       .wild =
           "The reshape after the all-to-all had its axes in the wrong order; heads got rows of "
           "others.",
       .scenario =
           scenario_text({.parallel = a2a, .heads = "heads = 8\nkv_heads = 4\nhead_dim = 8"}),
       .blind = BlindScenario{scenario_text({.parallel = a2a}), "each rank holds one head"},
       .plant = plant_transposed_heads},
      {.name = "kv_head_by_remainder",
       .field_class = "27",
       .place = FaultPlace::executor,
       .detector = Detector::head,
       .source = "vllm-project/vllm-omni PR#5716",
       .wild = "Query heads were paired with KV heads by the wrong rule after a split.",
       .scenario = scenario_text({}),
       .blind = BlindScenario{scenario_text({.heads = "heads = 4\nkv_heads = 1\nhead_dim = 8"}),
                              "there is one KV head"},
       .plant = plant_head_modulo},
      {.name = "kv_heads_not_replicated",
       .field_class = "27",
       .place = FaultPlace::executor,
       .detector = Detector::head,
       .source = "PrimeIntellect-ai/prime-rl PR#3042",
       .wild =
           "With more ranks than KV heads, ranks were given a KV head that their query heads do "
           "not read.",
       .scenario = scenario_text({.parallel = a2a}),
       .blind = BlindScenario{scenario_text({.parallel = a2a,
                                             .heads = "heads = 4\nkv_heads = 1\nhead_dim = 8"}),
                              "there is one KV head"},
       .plant = plant_first_kv_head},
      {.name = "value_lanes_shifted",
       .field_class = "38",
       .place = FaultPlace::executor,
       .detector = Detector::output,
       .source = "NVIDIA/Megatron-LM#3003",
       .wild =
           "V with a smaller head_dim than K was padded for the exchange, and the wrong elements "
           "were cut off afterwards.",
       .scenario =
           scenario_text({.heads = "heads = 4\nkv_heads = 2\nhead_dim_qk = 12\nhead_dim_v = 8"}),
       .blind = BlindScenario{scenario_text({}), "q, k and v have the same head_dim"},
       .plant = plant_shifted_lanes},
      {.name = "latent_weights_by_local_head",
       .field_class = "M9",
       .place = FaultPlace::executor,
       .detector = Detector::output,
       .source =
           "NVIDIA/Megatron-LM, multi_latent_attention.py: linear_kv_up_proj of a rank's heads",
       .wild = "No public report is known; where ranks exchange heads and keep all up-projections, "
               "a rank has to take those of its own heads.",
       .scenario = scenario_text({.parallel = a2a, .heads = expanded}),
       .blind = BlindScenario{scenario_text({.heads = expanded}), "every rank has all heads"},
       .plant = plant_local_weights},
      {.name = "all_zero_output",
       .field_class = "40",
       .place = FaultPlace::executor,
       .detector = Detector::output,
       .source = "NVIDIA/TransformerEngine#3528",
       .wild = "The kernel returned zeros, with and without context parallelism; a test that "
               "compares the two passes.",
       .scenario = scenario_text({}),
       .blind = std::nullopt,
       .plant = plant_zeros},
      {.name = "one_row_within_the_tolerance",
       .field_class = "41",
       .place = FaultPlace::executor,
       .detector = Detector::output,
       .source = "pytorch/pytorch PR#197208",
       .wild = "Absolute tolerances that do not follow the size of a row let one row of thousands "
               "be wrong.",
       .scenario = scenario_text({.batch = "lengths = [512]", .numerics = "dtype = \"bf16\""}),
       .blind = BlindScenario{scenario_text({.parallel = "cp_size = 2"}), "there is no rank 2"},
       .plant = plant_one_row},
  };
}

}  // namespace

std::vector<Fault> executor_faults() {
  std::vector<Fault> faults = merge_faults();
  for (Fault& fault : kernel_faults()) faults.push_back(std::move(fault));
  return faults;
}

}  // namespace cpscope
