#include "gui/model/balance/balance.h"

#include "sim/plan/round_steps.h"

#include <algorithm>
#include <numeric>

namespace cpscope::gui {
namespace {

/// Adds the pairs by rank of each step of a pass, step after step.
void add_steps(const PlanIndex& plan, Direction direction, Balance& balance) {
  const Pass& pass = plan.pass(direction);
  std::vector<int64_t> of_rank(static_cast<size_t>(plan.num_ranks()), 0);
  std::vector<int32_t> touched;
  const std::vector<int32_t> rounds = rounds_of_steps(plan.plan(), direction);
  for (size_t s = 0; s < plan.steps().size(); ++s) {
    const StepRef& step = plan.steps()[s];
    if (step.direction != direction) continue;
    BusiestRank busiest{static_cast<int32_t>(s), -1, 0, 0};
    if (!rounds.empty()) busiest.round = rounds[static_cast<size_t>(step.step)];
    for (int32_t stage = step.first_stage; stage < step.end_stage; ++stage) {
      const StageRef& ref = plan.stages()[static_cast<size_t>(stage)];
      if (ref.kind != StageKind::compute) continue;
      for (int64_t i = ref.begin; i < ref.end; ++i) {
        const ComputeItem& item = pass.computes[static_cast<size_t>(i)];
        if (item.visible_pairs == 0) continue;
        const int32_t rank = to_index(item.rank);
        of_rank[static_cast<size_t>(rank)] += item.visible_pairs;
        touched.push_back(rank);
      }
    }
    for (const int32_t rank : touched) {
      int64_t& pairs = of_rank[static_cast<size_t>(rank)];
      busiest.all_pairs += pairs;
      balance.pairs[direction][static_cast<size_t>(rank)] += pairs;
      if (pairs > busiest.pairs || (pairs == busiest.pairs && pairs > 0 && rank < busiest.rank)) {
        busiest.pairs = pairs;
        busiest.rank = rank;
      }
      pairs = 0;  // a rank with several items is counted once
    }
    touched.clear();
    balance.critical[direction] += busiest.pairs;
    balance.total[direction] += busiest.all_pairs;
    balance.steps.push_back(busiest);
  }
}

}  // namespace

double Balance::mean_pairs(Direction direction) const {
  const size_t ranks = pairs[direction].size();
  return ranks == 0 ? 0.0 : static_cast<double>(total[direction]) / static_cast<double>(ranks);
}

double Balance::mean_bytes() const {
  if (bytes.forward.empty()) return 0.0;
  int64_t sum = 0;
  for (const Direction direction : kDirections)
    sum = std::accumulate(bytes[direction].begin(), bytes[direction].end(), sum);
  return static_cast<double>(sum) / static_cast<double>(bytes.forward.size());
}

Balance measure_balance(const PlanIndex& plan) {
  Balance balance;
  const auto ranks = static_cast<size_t>(plan.num_ranks());
  for (const Direction direction : kDirections) {
    balance.pairs[direction].assign(ranks, 0);
    balance.bytes[direction].assign(ranks, 0);
    add_steps(plan, direction, balance);
    for (const TransferItem& item : plan.pass(direction).transfers)
      balance.bytes[direction][static_cast<size_t>(to_index(item.src))] += item.bytes;
  }
  balance.kv_necessary = plan.summary().kv_bytes_necessary;
  balance.kv_moved = plan.summary().kv_bytes_moved;
  const BatchSlots& slots = plan.plan().layout.slots;
  balance.slots[0] = slots.tokens;
  balance.slots[1] = slots.kv_tokens;
  for (const SequenceSlot& sequence : slots.sequences) {
    balance.valid[0] += sequence.q_valid;
    balance.valid[1] += sequence.kv_valid;
  }
  return balance;
}

}  // namespace cpscope::gui
