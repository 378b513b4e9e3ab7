#include "sim/faults/catalogue_parts.h"
#include "sim/faults/plan_edits.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

// Faults of schedules in which queries move and other ranks' results are merged.

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

}  // namespace

std::vector<Fault> partial_faults() {
  const auto moving = [](const std::string& type) {
    return scenario_text({.parallel = "cp_size = 4\ncp_comm_type = \"" + type + "\""});
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
  };
}

}  // namespace cpscope
