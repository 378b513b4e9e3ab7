#include "gui/model/plan_index.h"

#include "sim/base/check.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace cpscope::gui {
namespace {

void append_stages(const Plan& plan, Direction direction, std::vector<StageRef>& stages,
                   std::vector<StepRef>& steps) {
  for (const Stage& stage : plan.pass(direction).stages) {
    const int32_t step = to_index(stage.step);
    const auto number = static_cast<int32_t>(stages.size());
    stages.push_back({direction, step, stage.kind, stage.begin, stage.end});
    if (steps.empty() || steps.back().direction != direction || steps.back().step != step)
      steps.push_back({direction, step, number, number});
    steps.back().end_stage = number + 1;
  }
}

/// Number of pairs of different ranks that a transfer of either pass connects.
int64_t count_links(const ByDirection<PassColumns>& columns, int32_t num_ranks) {
  const auto ranks = static_cast<uint64_t>(num_ranks);
  constexpr uint64_t kMostMarked = uint64_t{1} << 24;
  std::vector<bool> marked(ranks * ranks <= kMostMarked ? ranks * ranks : 0, false);
  std::unordered_set<uint64_t> others;
  int64_t count = 0;
  for (const Direction direction : kDirections) {
    const ItemColumns& c = columns[direction][static_cast<size_t>(StageKind::transfer)];
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

}  // namespace

PlanIndex::PlanIndex(CheckedPlan checked)
    : checked_(std::move(checked)), summary_(summarise(checked_.plan())) {
  const Layout& layout = plan().layout;
  mask_ = compile_mask(plan().scenario.attention, layout.slots.sequences);
  for (const Direction direction : kDirections) {
    const auto first_stage = static_cast<int32_t>(stages_.size());
    columns_[direction] = make_columns(plan(), plan().pass(direction), first_stage);
    append_stages(plan(), direction, stages_, steps_);
  }
  num_links_ = count_links(columns_, num_ranks());
  size_ = static_cast<int64_t>(plan().slices.size()) + plan().forward.num_items() +
          plan().backward.num_items();
  for (const Side side : {Side::q, Side::kv}) {
    const size_t s = side == Side::kv ? 1 : 0;
    for (const RankId rank : layout.runs(side).ids()) {
      int64_t row = 0;
      for (const TokenRun& run : layout.runs(side)[rank]) {
        if (run.count() == 0) continue;
        owned_[s].push_back({run, to_index(rank), row});
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

int32_t PlanIndex::owner_of_head(Side side, int64_t token, int64_t head) const {
  if (!are_heads_owned(side)) return owner(side, token).rank;
  const IdVector<RankId, HeadRange>& heads = plan().layout.q_heads;
  for (const RankId rank : heads.ids()) {
    if (heads[rank].begin <= head && head < heads[rank].end) return to_index(rank);
  }
  return -1;
}

OwnedRow PlanIndex::owner(Side side, int64_t token) const {
  if (are_heads_owned(side)) return {};
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

size_t PlanIndex::first_sequence(Side side, int64_t token) const {
  const auto& sequences = plan().layout.slots.sequences;
  const auto it =
      std::partition_point(sequences.begin(), sequences.end(),
                           [&](const SequenceSlot& s) { return s.side(side).end() <= token; });
  return static_cast<size_t>(it - sequences.begin());
}

int64_t PlanIndex::sequence_of(Side side, int64_t token) const {
  const auto& sequences = plan().layout.slots.sequences;
  const size_t number = first_sequence(side, token);
  if (number >= sequences.size() || sequences[number].side(side).begin > token) return -1;
  return static_cast<int64_t>(number);
}

bool PlanIndex::is_valid(Side side, int64_t token) const {
  const int64_t sequence = sequence_of(side, token);
  if (sequence < 0) return false;
  const auto& sequences = plan().layout.slots.sequences;
  return sequences[static_cast<size_t>(sequence)].side(side).is_valid(token);
}

int64_t PlanIndex::count_visible(int64_t q0, int64_t q1, int64_t k0, int64_t k1) const {
  const auto& sequences = plan().layout.slots.sequences;
  int64_t count = 0;
  for (size_t n = first_sequence(Side::q, q0); n < sequences.size(); ++n) {
    const SequenceSlot& sequence = sequences[n];
    if (sequence.q_begin >= q1 || sequence.kv_begin >= k1) break;
    const int64_t first_query = sequence.q_valid_begin(), first_key = sequence.kv_valid_begin();
    const int64_t i0 = std::max<int64_t>(0, q0 - first_query);
    const int64_t i1 = std::min(sequence.q_valid, q1 - first_query);
    const int64_t j0 = std::max<int64_t>(0, k0 - first_key);
    const int64_t j1 = std::min(sequence.kv_valid, k1 - first_key);
    if (i0 >= i1 || j0 >= j1) continue;
    for (const Band& band : mask_.near_rows(static_cast<int64_t>(n), i0, i1))
      count += count_pairs_in_tile(band, i0, i1, j0, j1);
  }
  return count;
}

std::vector<int64_t> PlanIndex::items_with(const StageRef& stage, int32_t rank) const {
  std::vector<int64_t> items = items_of(stage, rank);
  if (stage.kind != StageKind::transfer) return items;
  const std::vector<int64_t> received =
      columns(stage.direction, stage.kind).items_to(stage.begin, stage.end, rank);
  items.insert(items.end(), received.begin(), received.end());
  std::sort(items.begin(), items.end());
  items.erase(std::unique(items.begin(), items.end()), items.end());
  return items;
}

int32_t PlanIndex::stage_of(const ItemId& item) const {
  const ItemColumns& items = columns(item.direction, item.kind);
  if (item.index < 0 || item.index >= static_cast<int64_t>(items.rank.size())) return -1;
  return items.stage_of(item.index);
}

int64_t count_stage_items(const PlanIndex& index, int32_t first_stage, int32_t end_stage) {
  int64_t items = 0;
  for (int32_t s = first_stage; s < end_stage; ++s) {
    const StageRef& stage = index.stages()[static_cast<size_t>(s)];
    items += stage.end - stage.begin;
  }
  return items;
}

IdVector<RankId, int64_t> pairs_by_rank(const PlanIndex& index, Moment moment) {
  IdVector<RankId, int64_t> pairs(static_cast<size_t>(index.num_ranks()), 0);
  for (int32_t s = moment.first_stage; s < moment.end_stage; ++s) {
    const StageRef& stage = index.stages()[static_cast<size_t>(s)];
    if (stage.kind != StageKind::compute) continue;
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      const ComputeItem& item = index.pass(stage.direction).computes[static_cast<size_t>(i)];
      pairs[item.rank] += item.visible_pairs;
    }
  }
  return pairs;
}

}  // namespace cpscope::gui
