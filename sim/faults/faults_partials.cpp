#include "sim/faults/catalogue_parts.h"
#include "sim/faults/plan_edits.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

// Faults of schedules in which queries move and other ranks' results are merged, and of rings with
// windows.

namespace cpscope {
namespace {

/// The first merge of a result that another rank has sent.
std::optional<int64_t> arrived_merge(const Plan& plan) {
  return find_item(plan.forward.merges, [&](const MergeItem& item) {
    if (item.partial == kNoBuffer) return false;
    const BufferRole role = plan.buffer(item.partial).role;
    return role != BufferRole::partial && plan.buffer(item.into).role == BufferRole::home;
  });
}

std::optional<PlantedFault> plant_unmerged_partial(const Plan& healthy) {
  const auto index = arrived_merge(healthy);
  if (!index) return std::nullopt;
  Plan plan = healthy;
  const MergeItem& merge = healthy.forward.merges[static_cast<size_t>(*index)];
  drop_item(plan.forward, plan.forward.merges, StageKind::merge, *index);
  return PlantedFault{
      .site = forward_site(StageKind::merge, merge.rank, merge.step, *index),
      .what = fmt::format("rank {} does not merge a result that has arrived", to_index(merge.rank)),
      .plan = std::move(plan)};
}

std::optional<PlantedFault> plant_doubled_partial(const Plan& healthy) {
  const auto index = arrived_merge(healthy);
  if (!index) return std::nullopt;
  Plan plan = healthy;
  const MergeItem& merge = healthy.forward.merges[static_cast<size_t>(*index)];
  repeat_item(plan.forward, plan.forward.merges, StageKind::merge, *index);
  return PlantedFault{
      .site = forward_site(StageKind::merge, merge.rank, merge.step, *index),
      .what = fmt::format("rank {} merges a result that has arrived twice", to_index(merge.rank)),
      .plan = std::move(plan)};
}

/// The result of several computes is sent although the last one is not in it.
std::optional<PlantedFault> plant_early_partial(const Plan& healthy) {
  const auto index = find_item(healthy.forward.merges, [&](const MergeItem& item) {
    return healthy.buffer(item.into).role == BufferRole::moved && item.order > 0;
  });
  if (!index) return std::nullopt;
  const MergeItem& merge = healthy.forward.merges[static_cast<size_t>(*index)];
  // The first place where the sum differs from the right one.
  const auto first = find_item(healthy.forward.merges, [&](const MergeItem& item) {
    return item.into == merge.into && item.step == merge.step;
  });
  Plan plan = healthy;
  drop_item(plan.forward, plan.forward.merges, StageKind::merge, *index);
  return PlantedFault{.site = forward_site(StageKind::merge, merge.rank, merge.step, *first),
                      .what = fmt::format("rank {} sends a result before its last part is in it",
                                          to_index(merge.rank)),
                      .plan = std::move(plan)};
}

/// Two results of one rank reach each other's owner.
std::optional<PlantedFault> exchange_owners(const Plan& healthy, RankId from, RankId one_owner,
                                            RankId other_owner) {
  const auto sent_to = [&](RankId owner) {
    return find_item(healthy.forward.transfers, [&](const TransferItem& item) {
      return item.payload == Payload::partial && item.src == from && item.dst == owner;
    });
  };
  const auto one = sent_to(one_owner), two = sent_to(other_owner);
  if (!one || !two) return std::nullopt;
  Plan plan = healthy;
  TransferItem &first = plan.forward.transfers[static_cast<size_t>(*one)],
               &second = plan.forward.transfers[static_cast<size_t>(*two)];
  if (healthy.rows_of(first) != healthy.rows_of(second)) return std::nullopt;
  std::swap(first.dst, second.dst);
  std::swap(first.to, second.to);
  std::swap(first.tokens, second.tokens);
  return PlantedFault{
      .site = forward_site(StageKind::transfer, one_owner, first.step, *one),
      .what = fmt::format("rank {} sends ranks {} and {} each other's results", to_index(from),
                          to_index(one_owner), to_index(other_owner)),
      .plan = std::move(plan)};
}
std::optional<PlantedFault> plant_exchanged_owners(const Plan& healthy) {
  return exchange_owners(healthy, RankId{0}, RankId{1}, RankId{2});
}
void plant_all_exchanged_owners(const Plan& healthy, const TakePlanted& take) {
  bool goes_on = true;
  for (int32_t from = 0; from < healthy.layout.cp_size && goes_on; ++from)
    for_each_pair(healthy.layout.cp_size, [&](RankId one, RankId other) {
      goes_on = offer(exchange_owners(healthy, RankId{from}, one, other), take);
      return goes_on;
    });
}

std::optional<PlantedFault> plant_lost_dq(const Plan& healthy) {
  const auto index = find_item(healthy.backward.transfers, [](const TransferItem& item) {
    return item.payload == Payload::dq && item.landing == Landing::add;
  });
  if (!index) return std::nullopt;
  Plan plan = healthy;
  const TransferItem& lost = healthy.backward.transfers[static_cast<size_t>(*index)];
  drop_item(plan.backward, plan.backward.transfers, StageKind::transfer, *index);
  return PlantedFault{
      .site = backward_site(StageKind::transfer, lost.dst, lost.step, *index),
      .what = fmt::format("a part of dq never comes home to rank {}", to_index(lost.dst)),
      .plan = std::move(plan)};
}

/// The fault in the first of these items that meet the condition.
template <class Item, class Meets>
std::optional<PlantedFault> plant_in_first(const Plan& healthy, const std::vector<Item>& items,
                                           Meets meets,
                                           std::optional<PlantedFault> (*plant)(const Plan&,
                                                                                int64_t item)) {
  const auto index = find_item(items, meets);
  return index ? plant(healthy, *index) : std::nullopt;
}

/// The fault in each of them.
template <class Item, class Meets>
void plant_in_each(const Plan& healthy, const std::vector<Item>& items, Meets meets,
                   std::optional<PlantedFault> (*plant)(const Plan&, int64_t item),
                   const TakePlanted& take) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (meets(items[i]) && !offer(plant(healthy, static_cast<int64_t>(i)), take)) return;
  }
}

/// The hop to the next window is posted after the inner ring: it sends the keys that the window has
/// ended with, not those that arrived for the sender's place.
std::optional<PlantedFault> delay_outer_hop(const Plan& healthy, int64_t index) {
  Plan plan = healthy;
  TransferItem& hop = plan.forward.transfers[static_cast<size_t>(index)];
  const auto last = find_item(healthy.forward.computes, [&](const ComputeItem& item) {
    return item.rank == hop.src && to_index(item.step) + 1 == to_index(hop.step);
  });
  if (!last) return std::nullopt;
  const ComputeItem& ended = healthy.forward.computes[static_cast<size_t>(*last)];
  if (healthy.rows(ended.kv_tokens) != healthy.rows(hop.tokens)) return std::nullopt;
  hop.from = ended.kv;
  return PlantedFault{
      .site = forward_site(StageKind::transfer, hop.dst, hop.step, index),
      .what = fmt::format("the next window gets stale keys from rank {}", to_index(hop.src)),
      .plan = std::move(plan)};
}
bool is_late_hop(const TransferItem& item) {
  return item.link == LinkClass::outer_ring && item.payload == Payload::kv &&
         to_index(item.step) > 0;
}
std::optional<PlantedFault> plant_late_outer_hop(const Plan& healthy) {
  return plant_in_first(healthy, healthy.forward.transfers, is_late_hop, delay_outer_hop);
}
void plant_all_late_outer_hops(const Plan& healthy, const TakePlanted& take) {
  plant_in_each(healthy, healthy.forward.transfers, is_late_hop, delay_outer_hop, take);
}

/// A hop of the sum of dq is lost: the next rank adds its share to what it holds of other queries.
std::optional<PlantedFault> lose_dq_hop(const Plan& healthy, int64_t index) {
  Plan plan = healthy;
  const TransferItem& lost = healthy.backward.transfers[static_cast<size_t>(index)];
  drop_item(plan.backward, plan.backward.transfers, StageKind::transfer, index);
  return PlantedFault{
      .site = backward_site(StageKind::transfer, lost.dst, lost.step, index),
      .what = fmt::format("a sum of dq is lost on its way to rank {}", to_index(lost.dst)),
      .plan = std::move(plan)};
}
/// A hop to a rank that holds a sum of other queries, which is from step 2 on, and not the last
/// one, which brings the sum home.
auto dq_hops_of(const Plan& plan) {
  return [&plan](const TransferItem& item) {
    return item.payload == Payload::dq && item.link == LinkClass::ring && to_index(item.step) > 1 &&
           plan.buffer(item.to).role != BufferRole::home;
  };
}
std::optional<PlantedFault> plant_lost_dq_hop(const Plan& healthy) {
  return plant_in_first(healthy, healthy.backward.transfers, dq_hops_of(healthy), lose_dq_hop);
}
void plant_all_lost_dq_hops(const Plan& healthy, const TakePlanted& take) {
  plant_in_each(healthy, healthy.backward.transfers, dq_hops_of(healthy), lose_dq_hop, take);
}

/// One rank leaves out the last round of a tree: what half of the ranks have computed is missing.
std::optional<PlantedFault> lose_round(const Plan& healthy, RankId rank) {
  const auto index = find_item(healthy.forward.merges, [&](const MergeItem& item) {
    return item.rank == rank && item.order == 1 &&
           healthy.buffer(item.into).role == BufferRole::home;
  });
  if (!index || healthy.scenario.parallel.combine != Combine::tree) return std::nullopt;
  Plan plan = healthy;
  const MergeItem& lost = healthy.forward.merges[static_cast<size_t>(*index)];
  drop_item(plan.forward, plan.forward.merges, StageKind::merge, *index);
  // The first place where the sum differs from the right one.
  const auto first = find_item(healthy.forward.merges,
                               [&](const MergeItem& item) { return item.into == lost.into; });
  return PlantedFault{.site = forward_site(StageKind::merge, lost.rank, lost.step, *first),
                      .what = fmt::format("rank {} leaves out the last round", to_index(lost.rank)),
                      .plan = std::move(plan)};
}
std::optional<PlantedFault> plant_lost_round(const Plan& healthy) {
  return lose_round(healthy, RankId{1});
}
void plant_all_lost_rounds(const Plan& healthy, const TakePlanted& take) {
  for (const RankId rank : healthy.home.ids())
    if (!offer(lose_round(healthy, rank), take)) return;
}

}  // namespace

std::vector<Fault> partial_faults() {
  const auto moving = [](const std::string& type) {
    return scenario_text({.parallel = "cp_size = 4\ncp_comm_type = \"" + type + "\""});
  };
  const auto decoder = [](int ranks) {
    return scenario_text({.attention = "attn_mask_type = \"causal_bottom_right\"",
                          .batch = "lengths = [2, 1, 1]\nkv_lengths = [61, 30, 97]",
                          .parallel = fmt::format(
                              "cp_size = {}\ncp_comm_type = \"gather_q\"\nlayout = \"contiguous\"\n"
                              "q_owner = \"heads\"\ncombine = \"tree\"",
                              ranks),
                          .numerics = "dtype = \"fp32\"\nbackward = false"});
  };
  const std::string alone = "cp_size = 1\ncp_comm_type = \"pass_q\"";
  const BlindScenario one_rank{scenario_text({.parallel = alone}), "one rank sends nothing"};
  const std::string unreported = "No public report is known; the merge needs every part once.";
  return {
      {.name = "arrived_partial_not_merged",
       .field_class = "M1",
       .place = FaultPlace::plan,
       .detector = Detector::count,
       .source = "arXiv:2412.20501, merge of returned blocks",
       .wild = unreported,
       .scenario = moving("token_ring"),
       .blind = one_rank,
       .plant = plant_unmerged_partial},
      {.name = "arrived_partial_merged_twice",
       .field_class = "M1",
       .place = FaultPlace::plan,
       .detector = Detector::count,
       .source = "arXiv:2411.01783, merge after the exchange of results",
       .wild = unreported,
       .scenario = moving("pass_q"),
       .blind = one_rank,
       .plant = plant_doubled_partial},
      {.name = "partial_sent_before_its_last_merge",
       .field_class = "M2",
       .place = FaultPlace::plan,
       .detector = Detector::count,
       .source = "arXiv:2512.20968, order of chunks in a tile",
       .wild = unreported,
       .scenario = moving("mesh"),
       .blind = BlindScenario{moving("gather_q"), "every result has one part"},
       .plant = plant_early_partial},
      {.name = "partials_of_two_owners_exchanged",
       .field_class = "M3",
       .place = FaultPlace::plan,
       .detector = Detector::head,
       .source = "arXiv:2411.01783, all-to-all of results",
       .wild = unreported,
       .scenario = moving("pass_q"),
       .blind = one_rank,
       .plant = plant_exchanged_owners,
       .cause = "ranks_exchanged",
       .plant_in_all_places = plant_all_exchanged_owners},
      {.name = "dq_of_a_helper_lost",
       .field_class = "M4",
       .place = FaultPlace::plan,
       .detector = Detector::gradient_probe,
       .source = "arXiv:2310.03294, helpers in the backward",
       .wild = unreported,
       .scenario =
           scenario_text({.batch = "lengths = [97]",
                          .parallel = "cp_size = 4\ncp_comm_type = \"helper_ring\"\nlayout = "
                                      "\"contiguous\""}),
       .blind = one_rank,
       .plant = plant_lost_dq},
      {.name = "outer_hop_posted_after_the_inner_ring",
       .field_class = "M5",
       .place = FaultPlace::plan,
       .detector = Detector::keys,
       .source = "arXiv:2406.18485, order of the two rings",
       .wild = "No public report is known; the variable of the window's keys is overwritten by the "
               "inner ring.",
       .scenario = scenario_text(
           {.batch = "lengths = [97, 48]",
            .parallel = "cp_size = 6\ncp_comm_type = \"double_ring\"\nring_window = 2"}),
       .blind = BlindScenario{moving("double_ring"), "two windows need one hop, of own keys"},
       .plant = plant_late_outer_hop,
       .cause = "stale_keys_sent",
       .plant_in_all_places = plant_all_late_outer_hops},
      {.name = "dq_of_a_ring_lost_on_its_way",
       .field_class = "M6",
       .place = FaultPlace::plan,
       .detector = Detector::gradient_probe,
       .source = "BurstAttention's backward ring of queries",
       .wild = unreported,
       .scenario = scenario_text({.parallel = "cp_size = 4\nring_backward = \"q\""}),
       .blind = one_rank,
       .plant = plant_lost_dq_hop,
       .cause = "partial_missing",
       .plant_in_all_places = plant_all_lost_dq_hops},
      {.name = "last_round_of_a_tree_left_out",
       .field_class = "M7",
       .place = FaultPlace::plan,
       .detector = Detector::count,
       .source = "arXiv:2408.04093, reduction of numerators and denominators in log2 P rounds",
       .wild = unreported,
       .scenario = decoder(4),
       .blind = BlindScenario{decoder(1), "one rank has no round"},
       .plant = plant_lost_round,
       .cause = "partial_missing",
       .plant_in_all_places = plant_all_lost_rounds},
  };
}

}  // namespace cpscope
