#include "sim/plan/planner/planner_rounds.h"

#include "sim/plan/planner/planner.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

using Group = std::pair<const CpGroup*, Plan>;  // with the plan of its ranks
using RowsOfRounds = std::vector<IdVector<RankId, TokenRun>>;

/// Copies the plans of groups into that of all ranks.
class RoundWriter {
 public:
  RoundWriter(PlanBuilder& builder, const RowsOfRounds& q_rows, const RowsOfRounds& kv_rows)
      : builder_(builder), q_rows_(q_rows), kv_rows_(kv_rows) {}

  /// The groups of the next round.
  void add(const std::vector<Group>& groups) {
    std::vector<Ids> ids;
    for (const auto& [group, plan] : groups) ids.push_back(add_parts(*group, plan));
    for (const Direction direction : kDirections) {
      if (direction == Direction::backward && !builder_.has_backward()) continue;
      add_pass(direction, groups, ids);
    }
    ++round_;
  }

 private:
  /// Where the first id of each kind of a group's plan is in the whole plan.
  struct Ids {
    int32_t rank = 0, list = 0, buffer = 0;
    int64_t slice = 0;
    IdVector<RankId, HomeBuffers> home;  // [rank of the group] ids of the group's plan
  };

  /// Adds lists, slices and buffers of a group.
  Ids add_parts(const CpGroup& group, const Plan& plan) {
    Plan& whole = builder_.plan();
    Ids ids;
    ids.rank = group.first_rank;
    ids.list = static_cast<int32_t>(whole.run_lists.size());
    ids.buffer = static_cast<int32_t>(whole.buffers.size());
    ids.slice = std::ssize(whole.slices);
    const auto first_run = std::ssize(whole.runs);
    whole.runs.insert(whole.runs.end(), plan.runs.begin(), plan.runs.end());
    for (RunList list : plan.run_lists) {
      list.first += first_run;
      whole.run_lists.push_back(list);
    }
    whole.slices.insert(whole.slices.end(), plan.slices.begin(), plan.slices.end());
    for (BufferSpec buffer : plan.buffers) {
      buffer.rank = RankId{to_index(buffer.rank) + ids.rank};
      buffer.tokens = list_of(ids, buffer.tokens);
      if (buffer.role == BufferRole::home) buffer.role = BufferRole::round;
      whole.buffers.push_back(buffer);
    }
    ids.home = plan.home;
    return ids;
  }

  static RunListId list_of(const Ids& ids, RunListId list) {
    return to_index(list) < 0 ? list : RunListId{to_index(list) + ids.list};
  }
  static BufferId buffer_of(const Ids& ids, BufferId buffer) {
    return to_index(buffer) < 0 ? buffer : BufferId{to_index(buffer) + ids.buffer};
  }
  static RankId rank_of(const Ids& ids, RankId rank) { return RankId{to_index(rank) + ids.rank}; }

  void add_pass(Direction direction, const std::vector<Group>& groups,
                const std::vector<Ids>& ids) {
    Pass& pass = builder_.plan().pass(direction);
    const int32_t base = pass.num_steps;
    int32_t steps = 0;
    for (const auto& [group, plan] : groups)
      steps = std::max(steps, plan.pass(direction).num_steps);
    copy_in(direction, ids, base);
    std::vector<size_t> next(groups.size(), 0);  // the next stage of each group
    for (int32_t step = 0; step < steps; ++step) add_step(direction, groups, ids, base, step, next);
    copy_out(direction, ids, base + steps - 1);
  }

  /// Joins the stages of one kind of all groups, in an order that each group's own stages keep.
  void add_step(Direction direction, const std::vector<Group>& groups, const std::vector<Ids>& ids,
                int32_t base, int32_t step, std::vector<size_t>& next) {
    const auto next_stage = [&](size_t g) -> const Stage* {
      const std::vector<Stage>& stages = groups[g].second.pass(direction).stages;
      if (next[g] == stages.size() || to_index(stages[next[g]].step) != step) return nullptr;
      return &stages[next[g]];
    };
    while (true) {
      const Stage* first = nullptr;
      for (size_t g = 0; g < groups.size() && first == nullptr; ++g) first = next_stage(g);
      if (first == nullptr) return;
      const StageKind kind = first->kind;
      builder_.open_stage(builder_.plan().pass(direction), base + step, kind);
      for (size_t g = 0; g < groups.size(); ++g) {
        const Stage* const stage = next_stage(g);
        if (stage == nullptr || stage->kind != kind) continue;
        add_items(groups[g].second.pass(direction), *stage, ids[g]);
        ++next[g];
      }
      builder_.close_stage();
    }
  }

  void add_items(const Pass& pass, const Stage& stage, const Ids& ids) {
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      const auto at = static_cast<size_t>(i);
      switch (stage.kind) {
        case StageKind::transfer: {
          TransferItem item = pass.transfers[at];
          item.src = rank_of(ids, item.src);
          item.dst = rank_of(ids, item.dst);
          item.from = buffer_of(ids, item.from);
          item.to = buffer_of(ids, item.to);
          item.from_rows = list_of(ids, item.from_rows);
          item.to_rows = list_of(ids, item.to_rows);
          item.tokens = list_of(ids, item.tokens);
          builder_.add_transfer(item);
          break;
        }
        case StageKind::compute: {
          ComputeItem item = pass.computes[at];
          item.rank = rank_of(ids, item.rank);
          for (BufferId* const buffer :
               {&item.q, &item.kv, &item.out, &item.d_out, &item.dq, &item.dkv})
            *buffer = buffer_of(ids, *buffer);
          item.q_tokens = list_of(ids, item.q_tokens);
          item.kv_tokens = list_of(ids, item.kv_tokens);
          item.first_slice += ids.slice;
          builder_.add_compute(item);
          break;
        }
        case StageKind::reorder: {
          const ReorderItem& item = pass.reorders[at];
          builder_.add_reorder(rank_of(ids, item.rank), buffer_of(ids, item.from),
                               buffer_of(ids, item.to), list_of(ids, item.order));
          break;
        }
        case StageKind::merge: {
          const MergeItem& item = pass.merges[at];
          builder_.add_merge(rank_of(ids, item.rank), buffer_of(ids, item.partial),
                             buffer_of(ids, item.into), item.order, list_of(ids, item.into_rows));
          break;
        }
        case StageKind::finish: {
          const FinishItem& item = pass.finishes[at];
          builder_.add_finish(rank_of(ids, item.rank), buffer_of(ids, item.buffer));
          break;
        }
      }
    }
  }

  /// Rows of a round go from the home buffers to those of the round, or back.
  void copy(const Ids& ids, RankId rank, BufferId HomeBuffers::*kind, Payload payload,
            bool is_inward) {
    const RankId own = rank_of(ids, rank);
    const BufferId home = builder_.plan().home[own].*kind;
    const BufferId part = buffer_of(ids, ids.home[rank].*kind);
    const bool is_kv = payload == Payload::kv || payload == Payload::dkv;
    const RunListId rows = builder_.add_list({(is_kv ? kv_rows_ : q_rows_)[round_][own]});
    TransferItem item;
    item.src = item.dst = own;
    item.from = is_inward ? home : part;
    item.to = is_inward ? part : home;
    (is_inward ? item.from_rows : item.to_rows) = rows;
    item.heads = is_kv ? builder_.all_kv_heads() : builder_.all_heads();
    item.payload = payload;
    builder_.add_transfer(item);
  }

  void copy_in(Direction direction, const std::vector<Ids>& groups, int32_t step) {
    builder_.open_stage(builder_.plan().pass(direction), step, StageKind::transfer);
    for (const Ids& ids : groups) {
      for (const RankId rank : ids.home.ids()) {
        if (direction == Direction::backward) {
          copy(ids, rank, &HomeBuffers::d_out, Payload::d_out, true);
          continue;
        }
        copy(ids, rank, &HomeBuffers::q, Payload::q, true);
        copy(ids, rank, &HomeBuffers::kv, Payload::kv, true);
      }
    }
    builder_.close_stage();
  }

  void copy_out(Direction direction, const std::vector<Ids>& groups, int32_t step) {
    builder_.open_stage(builder_.plan().pass(direction), step, StageKind::transfer);
    for (const Ids& ids : groups) {
      for (const RankId rank : ids.home.ids()) {
        if (direction == Direction::forward) {
          copy(ids, rank, &HomeBuffers::out, Payload::out, false);
          continue;
        }
        copy(ids, rank, &HomeBuffers::dq, Payload::dq, false);
        copy(ids, rank, &HomeBuffers::dkv, Payload::dkv, false);
      }
    }
    builder_.close_stage();
  }

  PlanBuilder& builder_;
  const RowsOfRounds &q_rows_, &kv_rows_;
  size_t round_ = 0;
};

/// The slots of a group's sequences, so that tokens keep their ids. With those of all sequences
/// thousands of groups would read thousands of slots each.
BatchSlots group_slots(const BatchSlots& whole, const CpGroup& group) {
  BatchSlots slots;
  slots.tokens = whole.tokens;
  slots.kv_tokens = whole.kv_tokens;
  std::vector<int64_t> sequences = group.sequences;
  std::sort(sequences.begin(), sequences.end());
  for (const int64_t s : sequences)
    slots.sequences.push_back(whole.sequences[static_cast<size_t>(s)]);
  return slots;
}

/// The layout of one group.
Layout group_layout(const Layout& whole, const CpGroup& group,
                    const IdVector<RankId, TokenRun>& q_rows,
                    const IdVector<RankId, TokenRun>& kv_rows, bool keeps_all_slots) {
  Layout layout;
  layout.kind = whole.kind;
  layout.cp_size = group.size;
  layout.same_kv = whole.same_kv;
  layout.slots = keeps_all_slots ? whole.slots : group_slots(whole.slots, group);
  for (int32_t r = 0; r < group.size; ++r) {
    const RankId rank{group.first_rank + r};
    layout.q_runs.push_back(slice_rows(whole.q_runs[rank], q_rows[rank].begin, q_rows[rank].end));
    layout.kv_runs.push_back(
        slice_rows(whole.kv_runs[rank], kv_rows[rank].begin, kv_rows[rank].end));
  }
  return layout;
}

}  // namespace

Scenario group_scenario(const Scenario& scenario, int32_t ranks) {
  Scenario part = scenario;
  part.parallel.cp_size = ranks;
  part.parallel.group_rule = GroupRule::all_ranks;
  part.parallel.cp_sizes.clear();
  return part;
}

std::optional<Error> refuse_round_schedule(const Scenario& scenario) {
  const Parallel& parallel = scenario.parallel;
  const CommType type = parallel.comm_type;
  if (!may_work_in_rounds(type)) {
    return make_refusal(
        fmt::format("cp_sizes is planned for p2p, a2a and all_gather, not for {}", to_name(type)),
        "use one of these", {"parallel.cp_sizes", "parallel.cp_comm_type"});
  }
  if (parallel.kv_replicated > 0) {
    return make_refusal(
        "cp_sizes requires kv_replicated = 0: a group holds only the keys of its own sequences",
        "use kv_replicated = 0", {"parallel.cp_sizes", "parallel.kv_replicated"});
  }
  if (has_ring_backward(type) && parallel.ring_backward == RingBackward::q) {
    return make_refusal(
        "cp_sizes requires ring_backward = \"kv\": statistics of rows are not made by round",
        "use ring_backward = \"kv\"", {"parallel.cp_sizes", "parallel.ring_backward"});
  }
  return std::nullopt;
}

std::optional<Error> plan_rounds(PlanBuilder& builder, const FillPlan& fill) {
  const Layout& layout = builder.plan().layout;
  const RowsOfRounds q_rows = rows_of_rounds(layout, Side::q),
                     kv_rows = rows_of_rounds(layout, Side::kv);
  RoundWriter writer(builder, q_rows, kv_rows);
  Scenario part = group_scenario(builder.scenario(), 1);
  // Planners read the layout. Lists of all sequences would be copied for each group.
  Batch& batch = part.batch;
  for (std::vector<int64_t>* const list :
       {&batch.lengths, &batch.kv_lengths, &batch.slots, &batch.kv_slots})
    list->clear();
  // Slices count the valid tokens of the whole batch.
  const bool keeps_all_slots = part.attention.mask_type == MaskType::slices;
  for (size_t k = 0; k < layout.rounds.size(); ++k) {
    std::vector<Group> groups;
    for (const CpGroup& group : layout.rounds[k].groups) {
      part.parallel.cp_size = group.size;
      if (auto error = refuse_by_rule(part)) return error;
      PlanBuilder own(part, group_layout(layout, group, q_rows[k], kv_rows[k], keeps_all_slots));
      own.add_home_buffers();
      if (auto error = fill(own)) return error;
      // Lists of all sequences would be held once for each group.
      own.plan().scenario = {};
      own.plan().layout = {};
      groups.emplace_back(&group, std::move(own.plan()));
    }
    writer.add(groups);
  }
  return std::nullopt;
}

}  // namespace cpscope
