#include "gui/model/plan_index.h"

#include "sim/base/check.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace cpscope::gui {
namespace {

void append_stages(const Pass& pass, bool is_backward, std::vector<StageRef>& stages,
                   std::vector<StepRef>& steps) {
  for (const Stage& stage : pass.stages) {
    const int32_t step = to_index(stage.step);
    const auto number = static_cast<int32_t>(stages.size());
    stages.push_back({is_backward, step, stage.kind, stage.begin, stage.end});
    if (steps.empty() || steps.back().is_backward != is_backward || steps.back().step != step)
      steps.push_back({is_backward, step, number, number});
    steps.back().end_stage = number + 1;
  }
}

/// Number of pairs of different ranks that a transfer of either pass connects.
int64_t count_links(const std::array<PassColumns, 2>& columns, int32_t num_ranks) {
  const auto ranks = static_cast<uint64_t>(num_ranks);
  constexpr uint64_t kMostMarked = uint64_t{1} << 24;
  std::vector<bool> marked(ranks * ranks <= kMostMarked ? ranks * ranks : 0, false);
  std::unordered_set<uint64_t> others;
  int64_t count = 0;
  for (const PassColumns& pass : columns) {
    const ItemColumns& c = pass[static_cast<size_t>(StageKind::transfer)];
    for (size_t i = 0; i < c.rank.size(); ++i) {
      if (c.rank[i] == c.other_rank[i]) continue;
      const uint64_t link =
          static_cast<uint64_t>(c.rank[i]) * ranks + static_cast<uint64_t>(c.other_rank[i]);
      if (marked.empty()) {
        count += others.insert(link).second ? 1 : 0;
      } else if (!marked[link]) {
        marked[link] = true;
        ++count;
      }
    }
  }
  return count;
}

int64_t measure(const Plan& plan) {
  size_t size = plan.slices.size();
  for (const Pass* pass : {&plan.forward, &plan.backward})
    size += pass->transfers.size() + pass->reorders.size() + pass->computes.size() +
            pass->merges.size() + pass->finishes.size();
  return static_cast<int64_t>(size);
}

/// Index of the first sequence whose slot ends after `token`.
size_t find_sequence(const BatchSlots& slots, Side side, int64_t token) {
  const auto it =
      std::partition_point(slots.sequences.begin(), slots.sequences.end(),
                           [&](const SequenceSlot& s) { return slot_ids(s, side).end <= token; });
  return static_cast<size_t>(it - slots.sequences.begin());
}

}  // namespace

PlanIndex::PlanIndex(CheckedPlan checked)
    : checked_(std::move(checked)), summary_(summarise(checked_.plan())) {
  const Layout& layout = plan().layout;
  mask_ = compile_mask(plan().scenario.attention, layout.slots.sequences);
  append_stages(plan().forward, false, stages_, steps_);
  append_stages(plan().backward, true, stages_, steps_);
  columns_[0] = make_columns(plan(), plan().forward, 0);
  columns_[1] =
      make_columns(plan(), plan().backward, static_cast<int32_t>(plan().forward.stages.size()));
  num_links_ = count_links(columns_, num_ranks());
  size_ = measure(plan());
  for (const Side side : {Side::q, Side::kv}) {
    const size_t s = side == Side::kv ? 1 : 0;
    const auto& by_rank = side == Side::q ? layout.q_runs : layout.kv_runs;
    for (size_t rank = 0; rank < by_rank.size(); ++rank) {
      int64_t row = 0;
      for (const TokenRun& run : by_rank[rank]) {
        if (run.count() == 0) continue;
        owned_[s].push_back({run, static_cast<int32_t>(rank), row});
        row += run.count();
        // The run of unit stride that holds a token is the last one that begins at or before it.
        if (run.stride > 1) widest_extent_[s] = std::max(widest_extent_[s], run.end - run.begin);
      }
    }
    std::sort(owned_[s].begin(), owned_[s].end(),
              [](const OwnedRun& a, const OwnedRun& b) { return a.run.begin < b.run.begin; });
  }
}

int32_t PlanIndex::step_of_stage(int32_t stage) const {
  const auto it = std::partition_point(steps_.begin(), steps_.end(),
                                       [&](const StepRef& s) { return s.end_stage <= stage; });
  CPSCOPE_CHECK(it != steps_.end(), "no step has this stage", stage, steps_.size());
  return static_cast<int32_t>(it - steps_.begin());
}

Moment PlanIndex::moment_of_step(int32_t step) const {
  const StepRef& ref = steps_[static_cast<size_t>(step)];
  return {ref.first_stage, ref.end_stage};
}

When PlanIndex::when(int32_t stage, Moment moment) {
  if (stage < moment.first_stage) return When::done;
  return stage < moment.end_stage ? When::now : When::later;
}

OwnedRow PlanIndex::owner(Side side, int64_t token) const {
  const size_t s = side == Side::kv ? 1 : 0;
  const auto& runs = owned_[s];
  auto it = std::partition_point(runs.begin(), runs.end(),
                                 [&](const OwnedRun& o) { return o.run.begin <= token; });
  // Searches backwards through the runs that are long enough to hold the token.
  while (it != runs.begin()) {
    --it;
    const TokenRun& run = it->run;
    if (token < run.end && (token - run.begin) % run.stride == 0)
      return {it->rank, it->row + (token - run.begin) / run.stride};
    if (token - run.begin >= widest_extent_[s]) break;
  }
  return {};
}

int64_t PlanIndex::sequence_of(Side side, int64_t token) const {
  const BatchSlots& slots = plan().layout.slots;
  const size_t number = find_sequence(slots, side, token);
  if (number >= slots.sequences.size() || slot_ids(slots.sequences[number], side).begin > token)
    return -1;
  return static_cast<int64_t>(number);
}

bool PlanIndex::is_valid(Side side, int64_t token) const {
  const int64_t sequence = sequence_of(side, token);
  return sequence >= 0 &&
         token <
             slot_ids(plan().layout.slots.sequences[static_cast<size_t>(sequence)], side).valid_end;
}

int64_t PlanIndex::count_visible(int64_t q0, int64_t q1, int64_t k0, int64_t k1) const {
  const BatchSlots& slots = plan().layout.slots;
  int64_t count = 0;
  for (size_t n = find_sequence(slots, Side::q, q0); n < slots.sequences.size(); ++n) {
    const SequenceSlot& sequence = slots.sequences[n];
    if (sequence.q_begin >= q1 || sequence.kv_begin >= k1) break;
    const int64_t i0 = std::max<int64_t>(0, q0 - sequence.q_begin);
    const int64_t i1 = std::min(sequence.q_valid, q1 - sequence.q_begin);
    const int64_t j0 = std::max<int64_t>(0, k0 - sequence.kv_begin);
    const int64_t j1 = std::min(sequence.kv_valid, k1 - sequence.kv_begin);
    if (i0 >= i1 || j0 >= j1) continue;
    for (const Band& band : mask_.near_rows(static_cast<int64_t>(n), i0, i1))
      count += count_pairs_in_tile(band, i0, i1, j0, j1);
  }
  return count;
}

int32_t PlanIndex::stage_of(const ItemTarget& item) const {
  const ItemColumns& items = columns(item.is_backward)[static_cast<size_t>(item.kind)];
  if (item.index < 0 || item.index >= static_cast<int64_t>(items.rank.size())) return -1;
  return items.stage_of(item.index);
}

SlotIds slot_ids(const SequenceSlot& sequence, Side side) {
  if (side == Side::q)
    return {sequence.q_begin, sequence.q_begin + sequence.q_valid,
            sequence.q_begin + sequence.q_slot};
  return {sequence.kv_begin, sequence.kv_begin + sequence.kv_valid,
          sequence.kv_begin + sequence.kv_slot};
}

int64_t count_stage_items(const PlanIndex& index, int32_t first_stage, int32_t end_stage) {
  int64_t items = 0;
  for (int32_t s = first_stage; s < end_stage; ++s) {
    const StageRef& stage = index.stages()[static_cast<size_t>(s)];
    items += stage.end - stage.begin;
  }
  return items;
}

}  // namespace cpscope::gui
