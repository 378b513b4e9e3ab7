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
std::optional<PlantedFault> plant_exchanged_owners(const Plan& healthy) {
  const auto sent_to = [&](int32_t owner) {
    return find_item(healthy.forward.transfers, [&](const TransferItem& item) {
      return item.payload == Payload::partial && to_index(item.src) == 0 &&
             to_index(item.dst) == owner;
    });
  };
  const auto one = sent_to(1), two = sent_to(2);
  if (!one || !two) return std::nullopt;
  Plan plan = healthy;
  TransferItem &first = plan.forward.transfers[static_cast<size_t>(*one)],
               &second = plan.forward.transfers[static_cast<size_t>(*two)];
  if (healthy.rows_of(first) != healthy.rows_of(second)) return std::nullopt;
  std::swap(first.dst, second.dst);
  std::swap(first.to, second.to);
  std::swap(first.tokens, second.tokens);
  return PlantedFault{.site = forward_site(StageKind::transfer, RankId{1}, first.step, *one),
                      .what = "rank 0 sends ranks 1 and 2 each other's results",
                      .plan = std::move(plan)};
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

/// The hop to the next window is posted after the inner ring: it sends the keys that the window has
/// ended with, not those that arrived for the sender's place.
std::optional<PlantedFault> plant_late_outer_hop(const Plan& healthy) {
  const auto index = find_item(healthy.forward.transfers, [](const TransferItem& item) {
    return item.link == LinkClass::outer_ring && to_index(item.step) > 0;
  });
  if (!index) return std::nullopt;
  Plan plan = healthy;
  TransferItem& hop = plan.forward.transfers[static_cast<size_t>(*index)];
  const auto last = find_item(healthy.forward.computes, [&](const ComputeItem& item) {
    return item.rank == hop.src && to_index(item.step) + 1 == to_index(hop.step);
  });
  const ComputeItem& ended = healthy.forward.computes[static_cast<size_t>(*last)];
  if (healthy.rows(ended.kv_tokens) != healthy.rows(hop.tokens)) return std::nullopt;
  hop.from = ended.kv;
  return PlantedFault{
      .site = forward_site(StageKind::transfer, hop.dst, hop.step, *index),
      .what = fmt::format("the next window gets stale keys from rank {}", to_index(hop.src)),
      .plan = std::move(plan)};
}

/// A hop of the sum of dq is lost: the next rank adds its share to what it holds of other queries.
std::optional<PlantedFault> plant_lost_dq_hop(const Plan& healthy) {
  const auto index = find_item(healthy.backward.transfers, [](const TransferItem& item) {
    return item.payload == Payload::dq && item.link == LinkClass::ring && to_index(item.step) > 0;
  });
  if (!index) return std::nullopt;
  Plan plan = healthy;
  const TransferItem& lost = healthy.backward.transfers[static_cast<size_t>(*index)];
  drop_item(plan.backward, plan.backward.transfers, StageKind::transfer, *index);
  return PlantedFault{
      .site = backward_site(StageKind::transfer, lost.dst, lost.step, *index),
      .what = fmt::format("a sum of dq is lost on its way to rank {}", to_index(lost.dst)),
      .plan = std::move(plan)};
}

/// One rank leaves out the last round of a tree: what half of the ranks have computed is missing.
std::optional<PlantedFault> plant_lost_round(const Plan& healthy) {
  const auto index = find_item(healthy.forward.merges, [&](const MergeItem& item) {
    return item.rank == RankId{1} && item.order == 1 &&
           healthy.buffer(item.into).role == BufferRole::home;
  });
  if (!index) return std::nullopt;
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
       .plant = plant_exchanged_owners},
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
       .plant = plant_late_outer_hop},
      {.name = "dq_of_a_ring_lost_on_its_way",
       .field_class = "M6",
       .place = FaultPlace::plan,
       .detector = Detector::gradient_probe,
       .source = "BurstAttention's backward ring of queries",
       .wild = unreported,
       .scenario = scenario_text({.parallel = "cp_size = 4\nring_backward = \"q\""}),
       .blind = one_rank,
       .plant = plant_lost_dq_hop},
      {.name = "last_round_of_a_tree_left_out",
       .field_class = "M7",
       .place = FaultPlace::plan,
       .detector = Detector::count,
       .source = "arXiv:2408.04093, reduction of numerators and denominators in log2 P rounds",
       .wild = unreported,
       .scenario = decoder(4),
       .blind = BlindScenario{decoder(1), "one rank has no round"},
       .plant = plant_lost_round},
  };
}

}  // namespace cpscope
