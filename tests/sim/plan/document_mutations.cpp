#include "tests/sim/plan/document_mutations.h"

#include "sim/plan/check/plan_check.h"
#include "sim/plan/document/plan_document.h"
#include "sim/plan/item_uses.h"
#include "sim/plan/visit_items.h"
#include "tests/sim/plan/faulty_plans.h"
#include "tests/sim/plan/plan_cases.h"

#include <algorithm>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

constexpr StageKind kKinds[] = {StageKind::transfer, StageKind::reorder, StageKind::compute,
                                StageKind::merge, StageKind::finish};

bool is_idle(const Pass& pass, StageKind kind, int64_t i) {
  return kind == StageKind::compute && pass.computes[static_cast<size_t>(i)].num_slices == 0;
}

int64_t stage_of(const Pass& pass, StageKind kind, int64_t i) {
  for (size_t s = 0; s < pass.stages.size(); ++s) {
    const Stage& stage = pass.stages[s];
    if (stage.kind == kind && stage.begin <= i && i < stage.end) return static_cast<int64_t>(s);
  }
  return -1;
}

/// The sum that an item adds to: additions to one sum may come in any order.
BufferId sum_of(const TransferItem& item) {
  return item.landing == Landing::add ? item.to : kNoBuffer;
}
BufferId sum_of(const MergeItem& item) { return item.order > 0 ? item.into : kNoBuffer; }
template <class Item>
BufferId sum_of(const Item&) {
  return kNoBuffer;
}

/// True if the item may stand in the other stage: no item from its own stage to there uses what it
/// writes, or writes what it reads, but for additions to the same sum.
bool may_move(const Pass& pass, StageKind kind, int64_t i, int64_t target) {
  std::set<BufferId> reads, writes;
  BufferId sum = kNoBuffer;
  visit_item(pass, kind, i, [&](const auto& item) {
    visit_reads(item, [&](BufferId id) { reads.insert(id); });
    visit_writes(item, [&](BufferId id) { writes.insert(id); });
    sum = sum_of(item);
  });
  const int64_t own = stage_of(pass, kind, i);
  bool is_free = true;
  for (int64_t s = std::min(own, target); s <= std::max(own, target); ++s) {
    const Stage& stage = pass.stages[static_cast<size_t>(s)];
    for_each_item(pass, Direction::forward, stage, [&](const ItemId& id, const auto& other) {
      if (id.kind == kind && id.index == i) return;
      const BufferId shared = sum_of(other) == sum ? sum : kNoBuffer;
      visit_reads(other,
                  [&](BufferId b) { is_free = is_free && (b == shared || !writes.contains(b)); });
      visit_writes(other, [&](BufferId b) {
        is_free = is_free && (b == shared || (!writes.contains(b) && !reads.contains(b)));
      });
    });
  }
  return is_free;
}

/// True if an item of the backward brings what the forward has left in the same buffer.
bool is_there_already(const Plan& plan, Direction direction, StageKind kind, int64_t i) {
  if (direction == Direction::forward) return false;
  const auto last_into = [](const auto& items, BufferId to) {
    return std::find_if(items.rbegin(), items.rend(),
                        [&](const auto& other) { return other.to == to; });
  };
  if (kind == StageKind::transfer) {
    const TransferItem& item = plan.backward.transfers[static_cast<size_t>(i)];
    const auto last = last_into(plan.forward.transfers, item.to);
    return last != plan.forward.transfers.rend() && last->payload == item.payload &&
           last->tokens == item.tokens && last->to_rows == item.to_rows &&
           last->heads == item.heads;
  }
  if (kind != StageKind::reorder) return false;
  const ReorderItem& item = plan.backward.reorders[static_cast<size_t>(i)];
  const auto last = last_into(plan.forward.reorders, item.to);
  return last != plan.forward.reorders.rend() && last->from == item.from &&
         last->order == item.order;
}

/// Takes the item out and puts it at the end of another stage of its kind.
void move_item(Pass& pass, StageKind kind, int64_t i, int64_t target) {
  const auto move = [&](auto& items) {
    auto item = items[static_cast<size_t>(i)];
    item.step = pass.stages[static_cast<size_t>(target)].step;
    erase_item(pass, kind, static_cast<size_t>(i));
    const int64_t end = pass.stages[static_cast<size_t>(target)].end;
    items.insert(items.begin() + end, item);
    bool is_behind = false;
    for (size_t s = 0; s < pass.stages.size(); ++s) {
      Stage& stage = pass.stages[s];
      if (stage.kind != kind) continue;
      if (is_behind) {
        ++stage.begin;
        ++stage.end;
      }
      if (static_cast<int64_t>(s) == target) {
        ++stage.end;
        is_behind = true;
      }
    }
  };
  if (kind == StageKind::transfer) move(pass.transfers);
  if (kind == StageKind::reorder) move(pass.reorders);
  if (kind == StageKind::compute) move(pass.computes);
  if (kind == StageKind::merge) move(pass.merges);
  if (kind == StageKind::finish) move(pass.finishes);
}

/// Is the document of this plan refused?
bool is_refused(const Plan& plan, std::string& why) {
  std::ostringstream text;
  write_plan_document(plan, text);
  const Result<PlanDocument> document = read_plan_document(text.str(), "mutated.json");
  if (!document) {
    why = to_text(document.error());
    return true;
  }
  const Result<CheckedPlan> checked = check_plan(document.value().plan);
  if (!checked) why = to_text(checked.error());
  return !checked.ok();
}

}  // namespace

MutationCount refuse_mutations(const Plan& plan, int64_t every) {
  MutationCount count;
  int64_t number = 0;
  const auto look = [&](const std::string& what, bool is_harmless, auto mutate,
                        Direction direction) {
    if (number++ % every != 0) return;
    Plan mutated = plan;
    mutate(mutated.pass(direction));
    std::string why;
    ++count.documents;
    if (is_refused(mutated, why)) {
      ++count.refused;
    } else {
      ++count.harmless;
      EXPECT_TRUE(is_harmless) << to_name(direction) << ", " << what << " is accepted\n"
                               << show(plan.scenario);
    }
  };
  for (const Direction direction : kDirections) {
    const Pass& pass = plan.pass(direction);
    for (const StageKind kind : kKinds) {
      for (int64_t i = 0; i < count_items(pass, kind); ++i) {
        const bool idle = is_idle(pass, kind, i);
        const bool is_spare = idle || is_there_already(plan, direction, kind, i);
        const std::string name = std::string(to_name(kind)) + " " + std::to_string(i);
        const auto index = static_cast<size_t>(i);
        look(
            name + " dropped", is_spare, [&](Pass& p) { erase_item(p, kind, index); }, direction);
        look(
            name + " doubled", idle, [&](Pass& p) { repeat_item(p, kind, index); }, direction);
        const int64_t own = stage_of(pass, kind, i);
        for (int64_t s = 0; s < std::ssize(pass.stages); ++s) {
          if (s == own || pass.stages[static_cast<size_t>(s)].kind != kind) continue;
          look(
              name + " moved to stage " + std::to_string(s), is_spare || may_move(pass, kind, i, s),
              [&](Pass& p) { move_item(p, kind, i, s); }, direction);
        }
      }
    }
  }
  return count;
}

}  // namespace cpscope::tests
