#include "sim/base/id_vector.h"
#include "sim/faults/catalogue_parts.h"
#include "sim/faults/plan_edits.h"
#include "sim/plan/visit_items.h"

#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

bool is_dkv(const Plan& plan, BufferId id) { return plan.buffer(id).kind == BufferKind::dkv; }

std::optional<PlantedFault> plant_stale_kv(const Plan& healthy) {
  Plan plan = healthy;
  std::optional<FaultSite> first;
  for (size_t i = 0; i < plan.backward.computes.size(); ++i) {
    ComputeItem& item = plan.backward.computes[i];
    const BufferId home = plan.home[item.rank].kv;
    if (item.kv == home || plan.buffer(home).rows < plan.rows(item.kv_tokens)) continue;
    item.kv = home;
    if (item.num_slices > 0 && !first)
      first = backward_site(StageKind::compute, item.rank, item.step, static_cast<int64_t>(i));
  }
  if (!first) return std::nullopt;
  return PlantedFault{.site = *first,
                      .what = "every backward step works on the rank's own K and V",
                      .plan = std::move(plan)};
}

/// The sum is sent on before the rank's own share is added.
std::optional<PlantedFault> plant_sent_too_early(const Plan& healthy) {
  const auto index = find_item(healthy.backward.merges, [&](const MergeItem& item) {
    return is_dkv(healthy, item.into) && to_index(item.rank) == 1 && to_index(item.step) == 1 &&
           item.partial != kNoBuffer && healthy.buffer(item.into).role != BufferRole::home;
  });
  if (!index) return std::nullopt;
  Plan plan = healthy;
  const MergeItem item = plan.backward.merges[static_cast<size_t>(*index)];
  drop_item(plan.backward, plan.backward.merges, StageKind::merge, *index);
  return PlantedFault{.site = backward_site(StageKind::merge, item.rank, item.step, *index),
                      .what = "rank 1 sends dK, dV on in step 1 before its share is added",
                      .plan = std::move(plan)};
}

std::optional<PlantedFault> plant_scattered_swap(const Plan& healthy) {
  Plan plan = healthy;
  std::optional<FaultSite> site;
  for (size_t i = 0; i < plan.backward.transfers.size(); ++i) {
    TransferItem& item = plan.backward.transfers[i];
    const int32_t dst = to_index(item.dst);
    if (item.payload != Payload::dkv || (dst != 1 && dst != 2)) continue;
    const auto twin = find_item(healthy.backward.transfers, [&](const TransferItem& candidate) {
      return candidate.payload == Payload::dkv && candidate.src == item.src &&
             to_index(candidate.dst) == 3 - dst;
    });
    if (!twin) return std::nullopt;
    item.from_rows = healthy.backward.transfers[static_cast<size_t>(*twin)].from_rows;
    if (!site && dst == 1)
      site = backward_site(StageKind::transfer, item.dst, item.step, static_cast<int64_t>(i));
  }
  if (!site) return std::nullopt;
  return PlantedFault{.site = *site,
                      .what = "dK, dV of ranks 1 and 2 are returned to each other",
                      .plan = std::move(plan)};
}

/// A mistake of the executor whose first effect is in a backward item that meets the condition.
template <class Item, class Meets>
std::optional<PlantedFault> plant_in_backward(const std::vector<Item>& items, StageKind kind,
                                              Mistake mistake, std::string what, Meets meets) {
  const auto index = find_item(items, meets);
  if (!index) return std::nullopt;
  const Item& item = items[static_cast<size_t>(*index)];
  return PlantedFault{.site = backward_site(kind, target_rank_of(item), item.step, *index),
                      .what = std::move(what),
                      .mistake = plant_mistake(mistake, {})};
}

std::optional<PlantedFault> plant_own_lse(const Plan& healthy) {
  // On one rank a tile's lse equals the whole row's.
  if (healthy.layout.cp_size == 1) return std::nullopt;
  return plant_in_backward(healthy.backward.computes, StageKind::compute,
                           Mistake::own_lse_in_backward,
                           "backward tiles use the lse of their own step",
                           [](const ComputeItem& item) { return item.num_slices > 0; });
}

std::optional<PlantedFault> plant_in_latent(const Plan& healthy, Mistake mistake,
                                            std::string what) {
  const Attention& attention = healthy.scenario.attention;
  const bool has_dv_in_dk =
      mistake == Mistake::latent_dv_misplaced ? attention.has_v_in_k() : attention.latent_dim > 0;
  if (!has_dv_in_dk) return std::nullopt;
  return plant_in_backward(healthy.backward.computes, StageKind::compute, mistake, std::move(what),
                           [](const ComputeItem& item) { return item.num_slices > 0; });
}

std::optional<PlantedFault> plant_lost_dv(const Plan& healthy) {
  return plant_in_latent(healthy, Mistake::latent_dv_lost,
                         "the gradient of v, which k stands for, is not added to dk");
}

std::optional<PlantedFault> plant_misplaced_dv(const Plan& healthy) {
  return plant_in_latent(healthy, Mistake::latent_dv_misplaced,
                         "the gradient of v is added to the last elements of dk");
}

std::optional<PlantedFault> plant_dq_16(const Plan& healthy) {
  return plant_in_backward(healthy.backward.merges, StageKind::merge, Mistake::dq_summed_in_16_bits,
                           "dq is summed up in bf16", [&](const MergeItem& item) {
                             return healthy.buffer(item.into).kind == BufferKind::dq &&
                                    item.partial != kNoBuffer;
                           });
}

std::optional<PlantedFault> plant_wire_16(const Plan& healthy) {
  return plant_in_backward(
      healthy.backward.transfers, StageKind::transfer, Mistake::dkv_wire_in_16_bits,
      "dK, dV travel in bf16", [](const TransferItem& item) {
        return item.payload == Payload::dkv && to_index(item.dst) == 0 && item.src != item.dst;
      });
}

std::optional<PlantedFault> plant_summed_sink(const Plan& healthy) {
  if (healthy.scenario.attention.softmax_type != SoftmaxType::learnable ||
      healthy.layout.cp_size == 1)
    return std::nullopt;
  return plant_in_backward(healthy.backward.finishes, StageKind::finish,
                           Mistake::sink_gradient_summed,
                           "d_sink is added up over ranks that each hold all of it",
                           [](const FinishItem& item) { return to_index(item.rank) == 0; });
}

}  // namespace

std::optional<PlantedFault> plant_dkv_summed_at_home(const Plan& healthy) {
  Plan plan = healthy;
  IdVector<RankId, int32_t> merges(plan.home.size());
  std::optional<FaultSite> site;
  for (size_t i = 0; i < plan.backward.merges.size(); ++i) {
    MergeItem& item = plan.backward.merges[i];
    if (!is_dkv(plan, item.into)) continue;
    if (plan.buffer(item.into).role != BufferRole::home && !site)
      site = backward_site(StageKind::merge, item.rank, item.step, static_cast<int64_t>(i));
    item.into = plan.home[item.rank].dkv;
    item.order = merges[item.rank]++;
  }
  if (!site) return std::nullopt;
  for (size_t i = plan.backward.transfers.size(); i-- > 0;) {
    if (plan.backward.transfers[i].payload == Payload::dkv)
      drop_item(plan.backward, plan.backward.transfers, StageKind::transfer,
                static_cast<int64_t>(i));
  }
  return PlantedFault{.site = *site,
                      .what = "every rank adds up the dK, dV of all blocks as its own",
                      .plan = std::move(plan)};
}

std::vector<Fault> backward_faults() {
  const char* const kLatentHeads = "heads = 4\nkv_heads = 1\nhead_dim_qk = 12\nlatent_dim = 8";
  const BlindScenario one_rank{scenario_text({.parallel = "cp_size = 1"}),
                               "one rank has no other step"};
  return {
      {.name = "stale_kv_in_backward",
       .field_class = "5",
       .place = FaultPlace::plan,
       .detector = Detector::gradient_probe,
       .source = "huggingface/diffusers#14265",
       .wild = "The ring's backward read the K and V of step 0 in every step. Outputs were right, "
               "gradients silently wrong, through a release.",
       .scenario = scenario_text({}),
       .blind = one_rank,
       .plant = plant_stale_kv,
       .cause = "stale_keys_in_backward"},
      {.name = "dkv_summed_where_computed",
       .field_class = "D1",
       .place = FaultPlace::plan,
       .detector = Detector::gradient_probe,
       .source = "NVIDIA/TransformerEngine PR#2012",
       .wild = "In the FP8 ring, dK and dV of all blocks that a rank visited were summed there "
               "instead of being sent to their owners; an RMSE test accepted it.",
       .scenario = scenario_text({}),
       .blind = one_rank,
       .plant = plant_dkv_summed_at_home},
      {.name = "dkv_sent_before_it_was_added",
       .field_class = "7",
       .place = FaultPlace::plan,
       .detector = Detector::gradient_probe,
       .source = "cornstarch-org/Cornstarch PR#70",
       .wild = "The dK, dV buffer left on one stream while another still added to it.",
       .scenario = scenario_text({}),
       .blind = one_rank,
       .plant = plant_sent_too_early},
      {.name = "dkv_returned_in_wrong_order",
       .field_class = "4",
       .place = FaultPlace::plan,
       .detector = Detector::gradient_probe,
       .source = "pytorch/pytorch PR#129514",
       .wild = "Gradients of K and V came back in another order than K and V had left in.",
       .scenario = scenario_text({.parallel = "cp_size = 4\ncp_comm_type = \"all_gather\""}),
       .blind = std::nullopt,
       .plant = plant_scattered_swap},
      {.name = "backward_with_the_steps_lse",
       .field_class = "6",
       .place = FaultPlace::executor,
       .detector = Detector::gradient_probe,
       .source = "NVIDIA/TransformerEngine#1557",
       .wild = "dQ, dK and dV of the ring were off by a relative error of 1.2 while outputs were "
               "right.",
       .scenario = scenario_text({}),
       .blind = one_rank,
       .plant = plant_own_lse},
      {.name = "dq_summed_in_16_bits",
       .field_class = "D10",
       .place = FaultPlace::executor,
       .detector = Detector::gradient,
       .source = "NVIDIA/TransformerEngine#716",
       .wild = "dQ, dK and dV of all steps were added up in the nominal dtype, so that the error "
               "grows with the ranks.",
       .scenario = scenario_text({}),
       .blind = std::nullopt,
       .plant = plant_dq_16},
      {.name = "dkv_travels_in_16_bits",
       .field_class = "15",
       .place = FaultPlace::executor,
       .detector = Detector::gradient,
       .source = "NVIDIA/TransformerEngine#821",
       .wild = "Partial gradients were rounded at every hop, where fp32 was meant to travel.",
       .scenario = scenario_text({}),
       .blind = one_rank,
       .plant = plant_wire_16},
      {.name = "sink_gradient_added_over_ranks",
       .field_class = "D11",
       .place = FaultPlace::executor,
       .detector = Detector::gradient,
       .source = "NVIDIA/TransformerEngine PR#3551",
       .wild = "The gradient of the sink is whole on every rank; a framework that sums gradients "
               "over the group counts it P times.",
       .scenario = scenario_text({.attention = "softmax_type = \"learnable\"",
                                  .parallel = "cp_size = 4\ncp_comm_type = \"a2a\""}),
       .blind = BlindScenario{scenario_text({.parallel = "cp_size = 4\ncp_comm_type = \"a2a\""}),
                              "there is no sink"},
       .plant = plant_summed_sink},
      {.name = "latent_dv_lost",
       .field_class = "M9",
       .place = FaultPlace::executor,
       .detector = Detector::gradient_probe,
       .source = "NVIDIA/Megatron-LM PR#3198, latent rows with one gradient",
       .wild = "No public report is known; a backward that returns dK of the latent row alone "
               "leaves outputs and dQ right.",
       .scenario = scenario_text({.heads = kLatentHeads}),
       .blind = BlindScenario{scenario_text({}), "v is a tensor of its own"},
       .plant = plant_lost_dv},
      {.name = "latent_dv_in_the_rotated_elements",
       .field_class = "M9",
       .place = FaultPlace::executor,
       .detector = Detector::gradient_probe,
       .source = "deepseek-ai/FlashMLA PR#198, dV added to dK in parts",
       .wild =
           "No public report is known; dV is cut into parts of the row, and the parts are added "
           "where the rotated elements belong.",
       .scenario = scenario_text({.heads = kLatentHeads}),
       .blind = BlindScenario{scenario_text({}), "v is a tensor of its own"},
       .plant = plant_misplaced_dv},
  };
}

}  // namespace cpscope
