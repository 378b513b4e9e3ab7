#include "gui/model/timeline/step_table.h"

#include "sim/base/parallel.h"
#include "sim/plan/round_steps.h"
#include "sim/plan/visit_items.h"

#include <algorithm>
#include <set>

namespace cpscope::gui {
namespace {

/// At most this many steps are kept in detail.
constexpr size_t kMostKept = 512;

PhaseWork make_phase(int32_t first_stage, int32_t num_ranks) {
  const auto ranks = static_cast<size_t>(num_ranks);
  PhaseWork work;
  work.first_stage = first_stage;
  work.end_stage = first_stage + 1;
  for (auto* figures : {&work.pairs, &work.sent, &work.received, &work.rows_moved})
    figures->assign(ranks, 0);
  for (auto* counts : {&work.merges, &work.reorders, &work.finishes}) counts->assign(ranks, 0);
  for (auto* items : {&work.compute_item, &work.sent_item, &work.received_item})
    items->assign(ranks, -1);
  return work;
}

/// True if a compute of the stage reads the destination of a transfer since `first_stage`.
bool reads_arrivals(const PlanIndex& index, int32_t first_stage, const StageRef& compute) {
  const Pass& pass = index.pass(compute.direction);
  std::set<BufferId> arrived;
  constexpr int64_t kLooked = 2048;  // limit of items: the stages are alike on all ranks
  for (int32_t s = first_stage; s < static_cast<int32_t>(index.stages().size()); ++s) {
    const StageRef& stage = index.stages()[static_cast<size_t>(s)];
    if (&stage == &compute) break;
    if (stage.kind != StageKind::transfer) continue;
    for (int64_t i = stage.begin; i < std::min(stage.end, stage.begin + kLooked); ++i)
      arrived.insert(pass.transfers[static_cast<size_t>(i)].to);
  }
  for (int64_t i = compute.begin; i < std::min(compute.end, compute.begin + kLooked); ++i) {
    const ComputeItem& item = pass.computes[static_cast<size_t>(i)];
    for (const BufferId read : {item.q, item.kv, item.d_out})
      if (arrived.count(read) > 0) return true;
  }
  return false;
}

/// True if this stage must wait for the work that the phase already has.
bool begins_phase(const PlanIndex& index, const PhaseWork& phase, const StageRef& stage) {
  const StageRef& last = index.stages()[static_cast<size_t>(phase.end_stage - 1)];
  if (stage.kind == StageKind::reorder || last.kind == StageKind::reorder)
    return stage.kind != last.kind;
  if (stage.kind == StageKind::transfer) return phase.has_compute || last.kind == StageKind::merge;
  if (stage.kind != StageKind::compute) return false;
  return phase.has_compute ||
         (phase.has_transfer && reads_arrivals(index, phase.first_stage, stage));
}

void add_transfer(const TransferItem& item, int64_t index, PhaseWork& work) {
  if (item.src == item.dst) {
    ++work.rows_moved[item.src];
    return;
  }
  work.sent[item.src] += item.bytes;
  work.received[item.dst] += item.bytes;
  if (work.sent_item[item.src] < 0) work.sent_item[item.src] = index;
  if (work.received_item[item.dst] < 0) work.received_item[item.dst] = index;
}

void add_stage_work(const PlanIndex& index, const StageRef& stage, PhaseWork& work) {
  if (stage.kind == StageKind::transfer) work.has_transfer = true;
  if (stage.kind == StageKind::compute) work.has_compute = true;
  for (int64_t i = stage.begin; i < stage.end; ++i) {
    visit_item(index.pass(stage.direction), stage.kind, i,
               Overload{[&](const TransferItem& item) { add_transfer(item, i, work); },
                        [&](const ReorderItem& item) { ++work.reorders[item.rank]; },
                        [&](const ComputeItem& item) {
                          work.pairs[item.rank] += item.visible_pairs;
                          if (work.compute_item[item.rank] < 0) work.compute_item[item.rank] = i;
                        },
                        [&](const MergeItem& item) { ++work.merges[item.rank]; },
                        [&](const FinishItem& item) { ++work.finishes[item.rank]; }});
  }
}

/// [rank] triples of a step. For the forward they are taken from the plan's summary.
std::vector<int64_t> count_pairs(const PlanIndex& index, const StepRef& ref) {
  const auto& summary = index.summary().pairs_by_step_rank;
  const auto step = static_cast<size_t>(ref.step);
  if (ref.direction == Direction::forward && step < summary.size()) return summary[step];
  return pairs_by_rank(index, {ref.first_stage, ref.end_stage}).values();
}

}  // namespace

StepWork measure_step(const PlanIndex& index, int32_t step) {
  const StepRef& ref = index.steps()[static_cast<size_t>(step)];
  StepWork phases;
  for (int32_t s = ref.first_stage; s < ref.end_stage; ++s) {
    const StageRef& stage = index.stages()[static_cast<size_t>(s)];
    if (phases.empty() || begins_phase(index, phases.back(), stage))
      phases.push_back(make_phase(s, index.num_ranks()));
    phases.back().end_stage = s + 1;
    add_stage_work(index, stage, phases.back());
  }
  for (PhaseWork& phase : phases) {
    phase.most_pairs = *std::max_element(phase.pairs.begin(), phase.pairs.end());
    phase.most_sent = *std::max_element(phase.sent.begin(), phase.sent.end());
    phase.most_received = *std::max_element(phase.received.begin(), phase.received.end());
  }
  return phases;
}

StepTable::StepTable(const PlanIndex& index)
    : num_ranks_(index.num_ranks()), num_steps_(static_cast<int32_t>(index.steps().size())) {
  area_.assign(at(0, num_ranks_ + 1), 0);
  most_.assign(static_cast<size_t>(num_steps_), 0);
  busiest_.assign(static_cast<size_t>(num_steps_), -1);
  // First the cells, shifted by one rank and one step; each step writes only its own column.
  for_each_index(num_steps_, [&](int64_t n) {
    const auto step = static_cast<int32_t>(n);
    const StepRef& ref = index.steps()[static_cast<size_t>(step)];
    const std::vector<int64_t> pairs = count_pairs(index, ref);
    for (int32_t rank = 0; rank < num_ranks_; ++rank)
      area_[at(step + 1, rank + 1)] = pairs[static_cast<size_t>(rank)];
    const auto [least, most] = std::minmax_element(pairs.begin(), pairs.end());
    most_[static_cast<size_t>(step)] = *most;
    if (*least != *most) {
      // minmax_element returns the last of several largest elements.
      const auto first = std::find(pairs.begin(), pairs.end(), *most);
      busiest_[static_cast<size_t>(step)] = static_cast<int32_t>(first - pairs.begin());
    }
  });
  for (int32_t rank = 1; rank <= num_ranks_; ++rank) {
    int64_t row = 0;
    for (int32_t step = 1; step <= num_steps_; ++step) {
      row += area_[at(step, rank)];
      area_[at(step, rank)] = row + area_[at(step, rank - 1)];
    }
  }
  if (!index.plan().layout.rounds.empty()) {
    for (const Direction direction : kDirections) {
      const std::vector<int32_t> rounds = rounds_of_steps(index.plan(), direction);
      for (size_t step = 0; step < rounds.size(); ++step)
        round_begins_.push_back(step == 0 || rounds[step] != rounds[step - 1]);
    }
    round_begins_.resize(static_cast<size_t>(num_steps_), false);
  }
  most_before_.assign(1, 0);
  for (const int64_t most : most_) most_before_.push_back(most_before_.back() + most);
  for (const StepRef& step : index.steps())
    if (step.direction == Direction::forward) ++num_forward_;
}

double StepTable::busy_share(int32_t first_step, int32_t end_step, int32_t first_rank,
                             int32_t end_rank) const {
  const int64_t most =
      most_before_[static_cast<size_t>(end_step)] - most_before_[static_cast<size_t>(first_step)];
  if (most <= 0 || end_rank <= first_rank) return 0;
  return static_cast<double>(sum(first_step, end_step, first_rank, end_rank)) /
         (static_cast<double>(most) * (end_rank - first_rank));
}

double StepTable::critical_path_over_ideal(Direction direction) const {
  const bool is_backward = direction == Direction::backward;
  const int32_t first = is_backward ? num_forward_ : 0;
  const int32_t end = is_backward ? num_steps_ : num_forward_;
  const double busy = busy_share(first, end, 0, num_ranks_);
  return busy > 0 ? 1 / busy : 1;
}

const StepWork& StepTable::work(const PlanIndex& index, int32_t step) const {
  const auto known = works_.find(step);
  if (known != works_.end()) return known->second;
  if (works_.size() >= kMostKept) works_.clear();
  return works_.emplace(step, measure_step(index, step)).first->second;
}

}  // namespace cpscope::gui
