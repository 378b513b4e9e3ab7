#include "gui/model/neighbours.h"

#include <algorithm>

namespace cpscope::gui {
namespace {

const Pass& pass_of(const Plan& plan, bool is_backward) {
  return is_backward ? plan.backward : plan.forward;
}

/// How an item accesses one buffer. Rows kAllRows: all that are in use.
struct Touch {
  bool reads = false, writes = false;
  bool adds = false;  // the old content stays part of the sum
  RunListId read_rows = kAllRows, written_rows = kAllRows;
};

Touch touch_of(const Plan& plan, const ItemTarget& target, BufferId buffer) {
  const Pass& pass = pass_of(plan, target.is_backward);
  const auto i = static_cast<size_t>(target.index);
  Touch touch;
  switch (target.kind) {
    case StageKind::transfer: {
      const TransferItem& item = pass.transfers[i];
      touch = {item.from == buffer, item.to == buffer, item.landing == Landing::add, item.from_rows,
               item.to_rows};
      break;
    }
    case StageKind::reorder:
      touch.reads = pass.reorders[i].from == buffer;
      touch.writes = pass.reorders[i].to == buffer;
      break;
    case StageKind::compute: {
      const ComputeItem& item = pass.computes[i];
      if (item.num_slices == 0) break;
      touch.reads = item.q == buffer || item.kv == buffer ||
                    (target.is_backward && (item.out == buffer || item.d_out == buffer));
      touch.writes =
          target.is_backward ? item.dq == buffer || item.dkv == buffer : item.out == buffer;
      break;
    }
    case StageKind::merge: {
      const MergeItem& item = pass.merges[i];
      touch.writes = item.into == buffer;
      // The first merge into an accumulator initialises it.
      touch.adds = touch.writes && item.order > 0;
      touch.reads = item.partial == buffer || touch.adds;
      break;
    }
    case StageKind::finish:
      touch.reads = touch.writes = pass.finishes[i].buffer == buffer;
      break;
  }
  return touch;
}

/// A set of rows of one buffer.
class RowSet {
 public:
  RowSet(const Plan& plan, BufferId buffer, RunListId rows)
      : plan_(plan), marks_(static_cast<size_t>(std::max<int64_t>(1, plan.buffer(buffer).rows))) {
    if (rows == kAllRows) {
      marks_.assign(marks_.size(), true);
      left_ = marks_.size();
      return;
    }
    visit(rows, [&](size_t row) {
      left_ += marks_[row] ? 0 : 1;
      marks_[row] = true;
    });
  }
  bool is_empty() const { return left_ == 0; }
  bool meets(RunListId rows) const {
    if (rows == kAllRows) return left_ > 0;
    for (const TokenRun& run : plan_.list(rows)) {
      for (int64_t row = run.begin; row < run.end; row += run.stride) {
        if (marks_[static_cast<size_t>(row)]) return true;
      }
    }
    return false;
  }
  void remove(RunListId rows) {
    if (rows == kAllRows) {
      left_ = 0;
      marks_.assign(marks_.size(), false);
      return;
    }
    visit(rows, [&](size_t row) {
      left_ -= marks_[row] ? 1 : 0;
      marks_[row] = false;
    });
  }

 private:
  template <class Visit>
  void visit(RunListId rows, Visit visit_row) {
    for (const TokenRun& run : plan_.list(rows)) {
      for (int64_t row = run.begin; row < run.end; row += run.stride)
        visit_row(static_cast<size_t>(row));
    }
  }

  const Plan& plan_;
  std::vector<bool> marks_;
  size_t left_ = 0;
};

/// Calls look(item) for the items of a stage that involve a rank.
template <class Look>
void for_items_of_rank(const PlanIndex& plan, const StageRef& stage, int32_t rank, Look look) {
  const ItemColumns& columns = plan.columns(stage.is_backward)[static_cast<size_t>(stage.kind)];
  const bool is_transfer = stage.kind == StageKind::transfer;
  for (int64_t i = stage.begin; i < stage.end; ++i) {
    const auto at = static_cast<size_t>(i);
    if (columns.rank[at] == rank || (is_transfer && columns.other_rank[at] == rank))
      look(ItemTarget{stage.is_backward, stage.kind, i});
  }
}

/// True if the buffer has its content from the beginning and is never written.
bool is_input(const BufferSpec& buffer) {
  return buffer.role == BufferRole::home &&
         (buffer.kind == BufferKind::q || buffer.kind == BufferKind::kv ||
          buffer.kind == BufferKind::d_out);
}

/// True if this access ends the search for earlier writers of its rows. A transfer that adds does
/// not: the earlier content stays in the sum. A merge does, because it is then listed as the
/// writer.
bool ends_what_was(const Touch& touch, StageKind kind) {
  return touch.writes && (!touch.adds || kind == StageKind::merge);
}

/// Items of a stage that involve a rank: numbers in [begin, end), ascending.
std::vector<int64_t> items_of_rank(const PlanIndex& plan, const StageRef& stage, int32_t rank,
                                   int64_t begin, int64_t end) {
  const ItemColumns& columns = plan.columns(stage.is_backward)[static_cast<size_t>(stage.kind)];
  const bool is_transfer = stage.kind == StageKind::transfer;
  std::vector<int64_t> items;
  for (int64_t i = begin; i < end; ++i) {
    const auto at = static_cast<size_t>(i);
    if (columns.rank[at] == rank || (is_transfer && columns.other_rank[at] == rank))
      items.push_back(i);
  }
  return items;
}

}  // namespace

std::vector<BufferId> buffers_read(const Plan& plan, const ItemTarget& target) {
  const Pass& pass = pass_of(plan, target.is_backward);
  const auto i = static_cast<size_t>(target.index);
  switch (target.kind) {
    case StageKind::transfer:
      return {pass.transfers[i].from};
    case StageKind::reorder:
      return {pass.reorders[i].from};
    case StageKind::compute: {
      const ComputeItem& item = pass.computes[i];
      if (item.num_slices == 0) return {};
      if (target.is_backward) return {item.q, item.kv, item.out, item.d_out};
      return {item.q, item.kv};
    }
    case StageKind::merge: {
      const MergeItem& item = pass.merges[i];
      std::vector<BufferId> read;
      if (item.partial != kNoBuffer) read.push_back(item.partial);
      if (item.order > 0) read.push_back(item.into);
      return read;
    }
    case StageKind::finish:
      return {pass.finishes[i].buffer};
  }
  return {};
}

std::vector<BufferId> buffers_written(const Plan& plan, const ItemTarget& target) {
  const Pass& pass = pass_of(plan, target.is_backward);
  const auto i = static_cast<size_t>(target.index);
  switch (target.kind) {
    case StageKind::transfer:
      return {pass.transfers[i].to};
    case StageKind::reorder:
      return {pass.reorders[i].to};
    case StageKind::compute: {
      const ComputeItem& item = pass.computes[i];
      if (item.num_slices == 0) return {};
      if (target.is_backward) return {item.dq, item.dkv};
      return {item.out};
    }
    case StageKind::merge:
      return {pass.merges[i].into};
    case StageKind::finish:
      return {pass.finishes[i].buffer};
  }
  return {};
}

Neighbours find_writers(const PlanIndex& index, const ItemTarget& item, BufferId buffer,
                        size_t most) {
  Neighbours found;
  const Plan& plan = index.plan();
  const BufferSpec& spec = plan.buffer(buffer);
  if (is_input(spec)) return found;
  RowSet rows(plan, buffer, touch_of(plan, item, buffer).read_rows);
  const int32_t own_stage = index.stage_of(item);
  for (int32_t s = own_stage; s >= 0 && !rows.is_empty() && !found.has_more; --s) {
    const StageRef& stage = index.stages()[static_cast<size_t>(s)];
    const std::vector<int64_t> items = items_of_rank(index, stage, to_index(spec.rank), stage.begin,
                                                     s == own_stage ? item.index : stage.end);
    // Several merges into one accumulator can be in one stage, so items are visited from last to
    // first.
    for (auto i = items.rbegin(); i != items.rend() && !found.has_more; ++i) {
      const ItemTarget other{stage.is_backward, stage.kind, *i};
      const Touch touch = touch_of(plan, other, buffer);
      if (!touch.writes || !rows.meets(touch.written_rows)) continue;
      found.has_more = found.items.size() == most;
      if (!found.has_more) found.items.push_back(other);
      if (ends_what_was(touch, stage.kind)) rows.remove(touch.written_rows);
    }
  }
  std::reverse(found.items.begin(), found.items.end());
  return found;
}

Neighbours find_readers(const PlanIndex& index, const ItemTarget& item, BufferId buffer,
                        size_t most) {
  Neighbours found;
  const Plan& plan = index.plan();
  const BufferSpec& spec = plan.buffer(buffer);
  RowSet rows(plan, buffer, touch_of(plan, item, buffer).written_rows);
  const int32_t own_stage = index.stage_of(item);
  const auto stages = static_cast<int32_t>(index.stages().size());
  for (int32_t s = own_stage; s < stages && !rows.is_empty() && !found.has_more; ++s) {
    const StageRef& stage = index.stages()[static_cast<size_t>(s)];
    for (const int64_t i :
         items_of_rank(index, stage, to_index(spec.rank),
                       s == own_stage ? item.index + 1 : stage.begin, stage.end)) {
      const ItemTarget other{stage.is_backward, stage.kind, i};
      const Touch touch = touch_of(plan, other, buffer);
      if (touch.reads && rows.meets(touch.read_rows)) {
        found.has_more = found.items.size() == most;
        if (found.has_more) break;
        found.items.push_back(other);
      }
      if (ends_what_was(touch, stage.kind)) rows.remove(touch.written_rows);
    }
  }
  return found;
}

}  // namespace cpscope::gui
