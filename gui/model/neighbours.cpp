#include "gui/model/neighbours.h"

#include "sim/plan/item_uses.h"
#include "sim/plan/visit_items.h"

#include <algorithm>

namespace cpscope::gui {
namespace {

/// How an item accesses one buffer. Rows kAllRows: all that are in use.
struct Touch {
  bool reads = false, writes = false;
  bool adds = false;  // the old content stays part of the sum
  RunListId read_rows = kAllRows, written_rows = kAllRows;
};

Touch touch_of(const Plan& plan, const ItemId& id, BufferId buffer) {
  Touch touch;
  visit_item(plan, id, [&](const auto& item) {
    visit_reads(item, [&](BufferId read) { touch.reads = touch.reads || read == buffer; });
    visit_writes(item, [&](BufferId written) { touch.writes = touch.writes || written == buffer; });
  });
  const Pass& pass = plan.pass(id.direction);
  const auto i = static_cast<size_t>(id.index);
  if (id.kind == StageKind::transfer) {
    const TransferItem& item = pass.transfers[i];
    touch.adds = item.landing == Landing::add;
    touch.read_rows = item.from_rows;
    touch.written_rows = item.to_rows;
  }
  // The first merge into an accumulator initialises it.
  if (id.kind == StageKind::merge) touch.adds = touch.writes && pass.merges[i].order > 0;
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

}  // namespace

Neighbours find_writers(const PlanIndex& index, const ItemId& item, BufferId buffer, size_t most) {
  Neighbours found;
  const Plan& plan = index.plan();
  const BufferSpec& spec = plan.buffer(buffer);
  if (is_input(spec)) return found;
  RowSet rows(plan, buffer, touch_of(plan, item, buffer).read_rows);
  const int32_t own_stage = index.stage_of(item);
  for (int32_t s = own_stage; s >= 0 && !rows.is_empty() && !found.has_more; --s) {
    const StageRef& stage = index.stages()[static_cast<size_t>(s)];
    const std::vector<int64_t> items = index.items_with(stage, to_index(spec.rank));
    // Several merges into one accumulator can be in one stage, so items are visited from last to
    // first.
    for (auto i = items.rbegin(); i != items.rend() && !found.has_more; ++i) {
      if (s == own_stage && *i >= item.index) continue;
      const ItemId other{stage.direction, stage.kind, *i};
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

Neighbours find_readers(const PlanIndex& index, const ItemId& item, BufferId buffer, size_t most) {
  Neighbours found;
  const Plan& plan = index.plan();
  const BufferSpec& spec = plan.buffer(buffer);
  RowSet rows(plan, buffer, touch_of(plan, item, buffer).written_rows);
  const int32_t own_stage = index.stage_of(item);
  const auto stages = static_cast<int32_t>(index.stages().size());
  for (int32_t s = own_stage; s < stages && !rows.is_empty() && !found.has_more; ++s) {
    const StageRef& stage = index.stages()[static_cast<size_t>(s)];
    for (const int64_t i : index.items_with(stage, to_index(spec.rank))) {
      if (s == own_stage && i <= item.index) continue;
      const ItemId other{stage.direction, stage.kind, i};
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
