#include "sim/base/id_vector.h"
#include "sim/faults/catalogue_parts.h"
#include "sim/faults/plan_edits.h"
#include "sim/plan/planner/planner.h"
#include "sim/plan/token_run.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// The pieces of two ranks of an all-gather are written to each other's place on every rank.
std::optional<PlantedFault> swap_gathered(const Plan& healthy, RankId one, RankId two) {
  Plan plan = healthy;
  std::optional<FaultSite> site;
  for (size_t i = 0; i < plan.forward.transfers.size(); ++i) {
    TransferItem& item = plan.forward.transfers[i];
    if (item.payload != Payload::kv || (item.src != one && item.src != two)) continue;
    const RankId other = item.src == one ? two : one;
    const auto twin = find_item(healthy.forward.transfers, [&](const TransferItem& candidate) {
      return candidate.payload == Payload::kv && candidate.dst == item.dst &&
             candidate.src == other;
    });
    if (!twin || item.to_rows == kAllRows) return std::nullopt;
    item.to_rows = healthy.forward.transfers[static_cast<size_t>(*twin)].to_rows;
    if (!site)
      site = forward_site(StageKind::transfer, item.dst, item.step, static_cast<int64_t>(i));
  }
  if (!site) return std::nullopt;
  return PlantedFault{
      .site = *site,
      .what = fmt::format("the gathered rows of ranks {} and {} stand in each other's place",
                          to_index(one), to_index(two)),
      .plan = std::move(plan)};
}
std::optional<PlantedFault> plant_gathered_swap(const Plan& healthy) {
  return swap_gathered(healthy, RankId{1}, RankId{2});
}
void plant_all_gathered_swaps(const Plan& healthy, const TakePlanted& take) {
  for_each_pair(healthy.layout.cp_size, [&](RankId one, RankId two) {
    return offer(swap_gathered(healthy, one, two), take);
  });
}

/// K and V are sent in the wrong direction, while every rank treats them as those of the rank
/// before.
std::optional<PlantedFault> plant_wrong_direction(const Plan& healthy) {
  Plan plan = healthy;
  const int32_t ranks = plan.layout.cp_size;
  std::optional<FaultSite> site;
  for (const Stage& stage : healthy.forward.stages) {
    if (stage.kind != StageKind::transfer) continue;
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      TransferItem& item = plan.forward.transfers[static_cast<size_t>(i)];
      if (item.link != LinkClass::ring || ranks < 3) return std::nullopt;
      const RankId before{(to_index(item.src) + ranks - 1) % ranks};
      for (int64_t j = stage.begin; j < stage.end; ++j) {
        const TransferItem& arriving = healthy.forward.transfers[static_cast<size_t>(j)];
        if (arriving.dst == before) item.to = arriving.to;
        if (to_index(arriving.dst) == 0 && !site)
          site = forward_site(StageKind::transfer, RankId{0}, arriving.step, j);
      }
      item.dst = before;
    }
  }
  if (!site) return std::nullopt;
  return PlantedFault{.site = *site,
                      .what = "every hop goes to the rank before instead of the rank after",
                      .plan = std::move(plan)};
}

/// Received rows overwrite rows that are still to be read and passed on.
std::optional<PlantedFault> plant_one_slot(const Plan& healthy) {
  Plan plan = healthy;
  IdVector<RankId, BufferId> slot_a(plan.home.size(), kNoBuffer);
  for (const BufferId id : plan.buffers.ids()) {
    const BufferSpec& buffer = plan.buffer(id);
    if (buffer.kind == BufferKind::kv && buffer.role == BufferRole::ring_a)
      slot_a[buffer.rank] = id;
  }
  const auto merge_slots = [&](BufferId& id) {
    const BufferSpec& buffer = plan.buffer(id);
    if (buffer.kind == BufferKind::kv && buffer.role == BufferRole::ring_b)
      id = slot_a[buffer.rank];
  };
  for (Pass* pass : {&plan.forward, &plan.backward}) {
    for (TransferItem& item : pass->transfers) {
      merge_slots(item.from);
      merge_slots(item.to);
    }
    for (ComputeItem& item : pass->computes) merge_slots(item.kv);
  }
  const auto first = find_item(healthy.forward.transfers, [](const TransferItem& item) {
    return to_index(item.step) == 1 && to_index(item.dst) == 0;
  });
  if (!first) return std::nullopt;
  return PlantedFault{.site = forward_site(StageKind::transfer, RankId{0}, StepId{1}, *first),
                      .what = "arriving K and V land in the slot that is still being read",
                      .plan = std::move(plan)};
}

std::optional<PlantedFault> plant_skipped_step(const Plan& healthy) {
  const auto index = find_item(healthy.forward.computes, [](const ComputeItem& item) {
    return to_index(item.rank) == 3 && to_index(item.step) == 2 && item.num_slices > 0;
  });
  if (!index) return std::nullopt;
  Plan plan = healthy;
  ComputeItem& item = plan.forward.computes[static_cast<size_t>(*index)];
  item.num_slices = 0;
  const auto merge = find_item(plan.forward.merges, [&](const MergeItem& candidate) {
    return candidate.rank == item.rank && candidate.step == item.step;
  });
  drop_item(plan.forward, plan.forward.merges, StageKind::merge, *merge);
  return PlantedFault{.site = forward_site(StageKind::compute, item.rank, item.step, *index),
                      .what = "rank 3 leaves out step 2",
                      .plan = std::move(plan)};
}

std::optional<PlantedFault> plant_doubled_step(const Plan& healthy) {
  const auto index = find_item(healthy.forward.merges, [](const MergeItem& item) {
    return to_index(item.rank) == 2 && to_index(item.step) == 1 && item.partial != kNoBuffer;
  });
  if (!index) return std::nullopt;
  Plan plan = healthy;
  const MergeItem item = plan.forward.merges[static_cast<size_t>(*index)];
  repeat_item(plan.forward, plan.forward.merges, StageKind::merge, *index);
  return PlantedFault{.site = forward_site(StageKind::merge, item.rank, item.step, *index),
                      .what = "rank 2 merges the partial result of step 1 twice",
                      .plan = std::move(plan)};
}

/// Nothing travels: every rank computes with its own keys alone, forward and backward.
std::optional<PlantedFault> plant_ranks_alone(const Plan& healthy) {
  const auto first = find_item(healthy.forward.transfers, [](const TransferItem& item) {
    return item.link == LinkClass::ring && to_index(item.dst) == 0;
  });
  if (!first) return std::nullopt;
  Plan plan = healthy;
  for (Pass* pass : {&plan.forward, &plan.backward}) {
    std::set<std::pair<RankId, StepId>> own;
    for (ComputeItem& item : pass->computes) {
      if (item.kv_tokens == plan.kv_lists[item.rank]) {
        own.emplace(item.rank, item.step);
        // The backward ring brings them home in its last hop.
        item.kv = plan.home[item.rank].kv;
      } else {
        item.num_slices = item.visible_pairs = 0;
      }
    }
    for (int64_t i = std::ssize(pass->merges); i-- > 0;) {
      MergeItem& item = pass->merges[static_cast<size_t>(i)];
      if (!own.contains({item.rank, item.step})) {
        drop_item(*pass, pass->merges, StageKind::merge, i);
        continue;
      }
      item.order = 0;
      if (plan.buffer(item.into).kind == BufferKind::dkv) item.into = plan.home[item.rank].dkv;
    }
    for (int64_t i = std::ssize(pass->transfers); i-- > 0;)
      drop_item(*pass, pass->transfers, StageKind::transfer, i);
  }
  return PlantedFault{.site = forward_site(StageKind::transfer, RankId{0}, StepId{0}, *first),
                      .what = "no K and V travel, and every rank computes with its own alone",
                      .plan = std::move(plan)};
}

/// Every partial result enters once for each rank, forward and backward.
std::optional<PlantedFault> plant_copies_counted(const Plan& healthy) {
  const auto first = find_item(healthy.forward.merges,
                               [](const MergeItem& item) { return item.partial != kNoBuffer; });
  if (!first || healthy.layout.cp_size == 1) return std::nullopt;
  Plan plan = healthy;
  for (Pass* pass : {&plan.forward, &plan.backward}) {
    for (int64_t i = std::ssize(pass->merges); i-- > 0;) {
      if (pass->merges[static_cast<size_t>(i)].partial == kNoBuffer) continue;
      for (int32_t copy = 1; copy < healthy.layout.cp_size; ++copy) {
        repeat_item(*pass, pass->merges, StageKind::merge, i);
        // Only the first merge into a buffer replaces what the buffer held.
        MergeItem& repeated = pass->merges[static_cast<size_t>(i) + 1];
        repeated.order = std::max(repeated.order, 1);
      }
    }
  }
  const MergeItem& item = healthy.forward.merges[static_cast<size_t>(*first)];
  return PlantedFault{.site = forward_site(StageKind::merge, item.rank, item.step, *first),
                      .what = "K and V that every rank holds enter once for each rank",
                      .plan = std::move(plan)};
}

/// The keys that every rank holds are taken for shards: each rank merges its result with them once
/// for every rank.
std::optional<PlantedFault> plant_replicas_counted(const Plan& healthy) {
  std::set<BufferId> of_replicas;
  for (const ComputeItem& item : healthy.forward.computes) {
    if (item.num_slices > 0 && item.kv == healthy.home[item.rank].replica)
      of_replicas.insert(item.out);
  }
  Plan plan = healthy;
  std::optional<int64_t> first;
  for (int64_t i = std::ssize(plan.forward.merges); i-- > 0;) {
    if (!of_replicas.contains(plan.forward.merges[static_cast<size_t>(i)].partial)) continue;
    first = i;
    for (int32_t copy = 1; copy < healthy.layout.cp_size; ++copy) {
      repeat_item(plan.forward, plan.forward.merges, StageKind::merge, i);
      MergeItem& repeated = plan.forward.merges[static_cast<size_t>(i) + 1];
      repeated.order = std::max(repeated.order, 1);
    }
  }
  if (!first || healthy.layout.cp_size == 1) return std::nullopt;
  const MergeItem& item = healthy.forward.merges[static_cast<size_t>(*first)];
  return PlantedFault{.site = forward_site(StageKind::merge, item.rank, item.step, *first),
                      .what = "keys that every rank holds are counted once for each rank",
                      .plan = std::move(plan)};
}

/// The last forward transfer of K and V from rank 0 to rank 1: the one that a byte count names
/// first.
std::optional<FaultSite> first_kv_transfer(const Plan& plan) {
  std::optional<FaultSite> site;
  for (size_t i = 0; i < plan.forward.transfers.size(); ++i) {
    const TransferItem& item = plan.forward.transfers[i];
    if (item.payload == Payload::kv && to_index(item.src) == 0 && to_index(item.dst) == 1)
      site = forward_site(StageKind::transfer, item.src, item.step, static_cast<int64_t>(i));
  }
  return site;
}

std::optional<PlantedFault> plant_expanded_kv(const Plan& healthy) {
  Plan plan = healthy;
  const int32_t group = plan.scenario.attention.heads / plan.scenario.attention.kv_heads;
  for (size_t i = plan.forward.transfers.size(); i-- > 0;) {
    if (plan.forward.transfers[i].payload != Payload::kv) continue;
    for (int32_t copy = 1; copy < group; ++copy)
      repeat_item(plan.forward, plan.forward.transfers, StageKind::transfer,
                  static_cast<int64_t>(i));
  }
  const auto site = first_kv_transfer(plan);
  if (!site || group == 1) return std::nullopt;
  return PlantedFault{.site = *site,
                      .what = "K and V are repeated for every query head before they travel",
                      .plan = std::move(plan)};
}

std::optional<PlantedFault> plant_full_gather(const Plan& healthy) {
  Scenario scenario = healthy.scenario;
  if (scenario.parallel.comm_type != CommType::group_cast) return std::nullopt;
  scenario.parallel.comm_type = CommType::all_gather;
  Plan plan = make_plan(scenario).value();
  const auto site = first_kv_transfer(plan);
  if (!site) return std::nullopt;
  return PlantedFault{.site = *site,
                      .what = "every rank fetches all K and V, whatever its window shows",
                      .plan = std::move(plan)};
}

/// The last rank's heads are computed by no rank, as if heads did not divide.
std::optional<PlantedFault> plant_lost_heads(const Plan& healthy) {
  Plan plan = healthy;
  const RankId last{plan.layout.cp_size - 1};
  std::optional<FaultSite> site;
  for (Pass* pass : {&plan.forward, &plan.backward}) {
    for (size_t i = 0; i < pass->computes.size(); ++i) {
      ComputeItem& item = pass->computes[i];
      if (item.rank != last || item.num_slices == 0) continue;
      item.num_slices = 0;
      if (!site)
        site = forward_site(StageKind::compute, item.rank, item.step, static_cast<int64_t>(i));
    }
    for (MergeItem& item : pass->merges) {
      if (item.rank == last) item.partial = kNoBuffer;
    }
  }
  if (!site) return std::nullopt;
  return PlantedFault{
      .site = *site,
      .what = fmt::format("the heads of rank {} are computed by no rank", to_index(last)),
      .plan = std::move(plan)};
}

/// The rows of the tail are written where the last valid rows belong.
std::optional<PlantedFault> plant_tail_over_valid(const Plan& healthy) {
  const BatchSlots& slots = healthy.layout.slots;
  const SequenceSlot& sequence = slots.sequences.back();
  const int64_t tail = sequence.side(Side::kv).end();
  const int64_t shift = slots.kv_tokens / healthy.layout.cp_size;
  if (tail == slots.kv_tokens || tail < shift) return std::nullopt;
  Plan plan = healthy;
  std::optional<FaultSite> site;
  RunListId order{-1};
  for (size_t i = 0; i < plan.forward.reorders.size(); ++i) {
    ReorderItem& item = plan.forward.reorders[i];
    if (plan.buffer(item.to).kind != BufferKind::kv) continue;
    if (!site) {
      std::vector<int64_t> rows = expand(plan.list(item.order));
      if (std::ssize(rows) != slots.kv_tokens) return std::nullopt;
      for (int64_t row = tail; row < slots.kv_tokens; ++row) rows[row - shift] = rows[row];
      order = add_list(plan, rows);
      site = forward_site(StageKind::reorder, item.rank, item.step, static_cast<int64_t>(i));
    }
    item.order = order;
  }
  if (!site) return std::nullopt;
  return PlantedFault{.site = *site,
                      .what = fmt::format("tail rows from {} on are written over rows from {} on",
                                          tail, tail - shift),
                      .plan = std::move(plan)};
}

/// Local buffers document after document, cut evenly, instead of rank after rank.
std::optional<PlantedFault> plant_document_major(const Plan& healthy) {
  Scenario scenario = healthy.scenario;
  std::vector<int64_t> by_document;
  const BatchSlots& slots = healthy.layout.slots;
  for (const SequenceSlot& slot : slots.sequences) {
    for (const RunListId list : healthy.q_lists) {
      for (const int64_t token : expand(healthy.list(list))) {
        if (token >= slot.q_begin && token < slot.q_begin + slot.q_slot)
          by_document.push_back(token);
      }
    }
  }
  const auto ranks = static_cast<size_t>(healthy.layout.cp_size);
  const size_t share = by_document.size() / ranks;
  if (slots.sequences.size() < 2 || ranks < 2 || share * ranks != by_document.size())
    return std::nullopt;
  scenario.parallel.layout = LayoutKind::indices;
  for (size_t rank = 0; rank < ranks; ++rank)
    scenario.parallel.imported.ranks.emplace_back(by_document.begin() + rank * share,
                                                  by_document.begin() + (rank + 1) * share);
  scenario.parallel.imported.kv_ranks = scenario.parallel.imported.ranks;
  for (size_t s = 0; s < slots.sequences.size(); ++s)
    scenario.batch.slots[s] = scenario.batch.kv_slots[s] = slots.sequences[s].q_slot;
  Plan plan = make_plan(scenario).value();
  const auto most = std::max_element(
      plan.forward.computes.begin(), plan.forward.computes.end(),
      [](const ComputeItem& a, const ComputeItem& b) { return a.visible_pairs < b.visible_pairs; });
  return PlantedFault{.site = forward_site(StageKind::compute, most->rank, most->step,
                                           most - plan.forward.computes.begin()),
                      .what = "tokens are split document after document",
                      .plan = std::move(plan)};
}

}  // namespace

std::vector<Fault> movement_faults() {
  const std::string a2a = "cp_size = 4\ncp_comm_type = \"a2a\"";
  const std::string gather = "cp_size = 4\ncp_comm_type = \"all_gather\"";
  const std::string eight_heads = "heads = 8\nkv_heads = 4\nhead_dim = 8";
  return {
      {.name = "documents_assigned_before_ranks",
       .field_class = "2",
       .place = FaultPlace::plan,
       .detector = Detector::balance,
       .source = "pytorch/pytorch PR#189902",
       .wild = "The permutation was document-major instead of rank-major. Every number was right; "
               "one rank did 62 units of work, the other 26, where 44 each were meant.",
       .scenario = scenario_text({.batch = "lengths = [16, 48]", .parallel = "cp_size = 2"}),
       .blind = BlindScenario{scenario_text({.batch = "lengths = [64]", .parallel = "cp_size = 2"}),
                              "one document has one order"},
       .plant = plant_document_major},
      {.name = "gathered_rows_swapped",
       .field_class = "4",
       .place = FaultPlace::plan,
       .detector = Detector::keys,
       .source = "pytorch/pytorch PR#129514",
       .wild =
           "Split sizes of a collective were swapped; the gathered rows had the right shape and "
           "the wrong owner.",
       .scenario = scenario_text({.parallel = gather}),
       .blind = std::nullopt,
       .plant = plant_gathered_swap,
       .cause = "ranks_exchanged",
       .plant_in_all_places = plant_all_gathered_swaps},
      {.name = "ring_turns_the_other_way",
       .field_class = "4",
       .place = FaultPlace::plan,
       .detector = Detector::keys,
       .source = "pytorch/pytorch PR#129514",
       .wild = "Buffers went to the previous rank, labels said next. Gradients were wrong and no "
               "test saw it.",
       .scenario = scenario_text({}),
       .blind = BlindScenario{scenario_text({.parallel = "cp_size = 2"}),
                              "with two ranks both ways lead to the same neighbour"},
       .plant = plant_wrong_direction},
      {.name = "one_buffer_where_two_are_needed",
       .field_class = "7",
       .place = FaultPlace::plan,
       .detector = Detector::keys,
       .source = "cornstarch-org/Cornstarch PR#77",
       .wild = "The next K and V landed in the buffer that was still being read: garbage now and "
               "then, depending on timing.",
       .scenario = scenario_text({}),
       .blind = BlindScenario{scenario_text({.parallel = "cp_size = 2"}),
                              "with two ranks nothing arrives a second time"},
       .plant = plant_one_slot,
       .cause = "buffer_overwritten"},
      {.name = "ring_step_skipped",
       .field_class = "19",
       .place = FaultPlace::plan,
       .detector = Detector::count,
       .source = "jzhang38/EasyContext#47",
       .wild = "Chunk arithmetic left out one step; the keys of one source were missing.",
       .scenario = scenario_text({}),
       .blind =
           BlindScenario{
               scenario_text({.batch = "lengths = [16, 16, 16, 16]",
                              .parallel = "cp_size = 4\nlayout = \"contiguous\""}),
               "every document lives on one rank, so that the step has nothing to compute"},
       .plant = plant_skipped_step},
      {.name = "ring_step_doubled",
       .field_class = "19",
       .place = FaultPlace::plan,
       .detector = Detector::count,
       .source = "zhuzilin/ring-flash-attention#39",
       .wild = "A request was waited for twice and its block entered the sum twice.",
       .scenario = scenario_text({}),
       .blind = std::nullopt,
       .plant = plant_doubled_step},
      {.name = "context_parallelism_silently_off",
       .field_class = "43",
       .place = FaultPlace::plan,
       .detector = Detector::count,
       .source = "NVIDIA-NeMo/Megatron-Bridge#2667",
       .wild = "With a2a+p2p and no sizes for its groups the attention got no group, and each rank "
               "saw only its own part of the sequence. Training was faster than the hardware can "
               "be, and there was no error.",
       .scenario = scenario_text({.batch = "lengths = [64]"}),
       .blind = BlindScenario{scenario_text({.batch = "lengths = [64]", .parallel = "cp_size = 1"}),
                              "one rank sees everything"},
       .plant = plant_ranks_alone},
      {.name = "replicated_keys_counted_per_rank",
       .field_class = "44",
       .place = FaultPlace::plan,
       .detector = Detector::count,
       .source = "vllm-project/vllm-omni PR#6930",
       .wild = "Cross attention took text keys that every rank holds whole for shards, and joined "
               "the copies: each key counted once for each rank.",
       .scenario = scenario_text({.attention = "attn_mask_type = \"no_mask\"",
                                  .batch = "lengths = [64]\nkv_lengths = [32]"}),
       .blind = BlindScenario{scenario_text({.attention = "attn_mask_type = \"no_mask\"",
                                             .batch = "lengths = [64]\nkv_lengths = [32]",
                                             .parallel = "cp_size = 1"}),
                              "there is one copy"},
       .plant = plant_copies_counted},
      {.name = "replicated_keys_counted_by_every_rank",
       .field_class = "M8",
       .place = FaultPlace::plan,
       .detector = Detector::count,
       .source = "sgl-project/sglang, diffusion under sequence parallelism, 2026-08",
       .wild = "Tokens of the prompt were on every rank and went round the ring as if they were "
               "shards; every rank counted them again (SSIM 0.894).",
       .scenario = scenario_text({.attention = "attn_mask_type = \"no_mask\"",
                                  .parallel = "cp_size = 4\nkv_replicated = 8"}),
       .blind = BlindScenario{scenario_text({.attention = "attn_mask_type = \"no_mask\"",
                                             .parallel = "cp_size = 1\nkv_replicated = 8"}),
                              "there is one copy"},
       .plant = plant_replicas_counted,
       .cause = "keys_counted_twice"},
      {.name = "heads_left_to_nobody",
       .field_class = "26",
       .place = FaultPlace::plan,
       .detector = Detector::count,
       .source = "microsoft/DeepSpeed#8291",
       .wild = "A global kept from another layer split heads as [4, 4, 4, 0]; the last rank "
               "computed none.",
       .scenario = scenario_text({.parallel = a2a}),
       .blind = std::nullopt,
       .plant = plant_lost_heads},
      {.name = "kv_expanded_before_exchange",
       .field_class = "28",
       .place = FaultPlace::plan,
       .detector = Detector::bytes,
       .source = "vllm-project/vllm-omni#3939",
       .wild = "K and V were repeated for all query heads before the exchange: right numbers, "
               "heads / kv_heads times the bytes.",
       .scenario = scenario_text({.parallel = a2a, .heads = eight_heads}),
       .blind = BlindScenario{scenario_text({.parallel = a2a, .heads = "heads = 4\nhead_dim = 8"}),
                              "every query head has a kv head of its own"},
       .plant = plant_expanded_kv},
      {.name = "everything_gathered_for_a_window",
       .field_class = "29",
       .place = FaultPlace::plan,
       .detector = Detector::bytes,
       .source = "NVIDIA/Megatron-LM#2222",
       .wild = "All K and V were gathered for a sliding window that needs a few rows of one "
               "neighbour.",
       .scenario =
           scenario_text({.attention = "window_size = [8, 0]",
                          .batch = "lengths = [64]",
                          .parallel = "cp_size = 4\ncp_comm_type = \"group_cast\"\nlayout = "
                                      "\"contiguous\""}),
       .blind = std::nullopt,
       .plant = plant_full_gather},
      {.name = "tail_rows_over_valid_rows",
       .field_class = "D2",
       .place = FaultPlace::plan,
       .detector = Detector::keys,
       .source = "NVIDIA/TransformerEngine PR#2220",
       .wild = "With a packed buffer longer than its sequences, the reorder kernel mapped the tail "
               "of every rank but the first onto valid rows.",
       .scenario = scenario_text({.attention = "attn_mask_type = \"padding\"",
                                  .batch = "lengths = [61]",
                                  .parallel = a2a + "\nlayout = \"contiguous\""}),
       .blind = BlindScenario{scenario_text({.batch = "lengths = [64]",
                                             .parallel = a2a + "\nlayout = \"contiguous\""}),
                              "the buffer has no tail"},
       .plant = plant_tail_over_valid,
       .cause = "tail_over_valid_rows"},
  };
}

}  // namespace cpscope
