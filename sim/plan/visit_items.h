#pragma once

#include "sim/plan/item_event.h"
#include "sim/plan/plan.h"

#include <utility>

/// Visitors of items. `visit` is called with the item in its own type (TransferItem, ReorderItem,
/// ComputeItem, MergeItem or FinishItem): a generic lambda, or an Overload of lambdas.
namespace cpscope {

/// Several lambdas as one visitor.
template <class... Visits>
struct Overload : Visits... {
  using Visits::operator()...;
};
template <class... Visits>
Overload(Visits...) -> Overload<Visits...>;

/// Returns visit(item) for one item of a pass.
template <class AnyPass, class Visit>
decltype(auto) visit_item(AnyPass& pass, StageKind kind, int64_t index, Visit&& visit) {
  const auto i = static_cast<size_t>(index);
  switch (kind) {
    case StageKind::transfer:
      return visit(pass.transfers[i]);
    case StageKind::reorder:
      return visit(pass.reorders[i]);
    case StageKind::compute:
      return visit(pass.computes[i]);
    case StageKind::merge:
      return visit(pass.merges[i]);
    case StageKind::finish:
      break;
  }
  return visit(pass.finishes[i]);
}

/// Returns visit(item) for the item of an id.
template <class Visit>
decltype(auto) visit_item(const Plan& plan, const ItemId& id, Visit&& visit) {
  return visit_item(plan.pass(id.direction), id.kind, id.index, std::forward<Visit>(visit));
}

/// Calls visit(id, item) for all items of one stage, in order.
template <class Visit>
void for_each_item(const Pass& pass, Direction direction, const Stage& stage, Visit&& visit) {
  for (int64_t i = stage.begin; i < stage.end; ++i) {
    visit_item(pass, stage.kind, i, [&](const auto& item) {
      visit(ItemId{direction, stage.kind, i}, item);
    });
  }
}

/// Calls visit(id, item) for all items of one direction, in the order of the stages.
template <class Visit>
void for_each_item(const Plan& plan, Direction direction, Visit&& visit) {
  const Pass& pass = plan.pass(direction);
  for (const Stage& stage : pass.stages) for_each_item(pass, direction, stage, visit);
}

/// The rank that executes an item; the sender of a transfer.
inline RankId rank_of(const TransferItem& item) { return item.src; }
template <class Item>
RankId rank_of(const Item& item) {
  return item.rank;
}

/// The rank whose memory an item writes; the receiver of a transfer.
inline RankId target_rank_of(const TransferItem& item) { return item.dst; }
template <class Item>
RankId target_rank_of(const Item& item) {
  return item.rank;
}

/// Number of items of a kind.
inline int64_t count_items(const Pass& pass, StageKind kind) {
  switch (kind) {
    case StageKind::transfer:
      return static_cast<int64_t>(pass.transfers.size());
    case StageKind::reorder:
      return static_cast<int64_t>(pass.reorders.size());
    case StageKind::compute:
      return static_cast<int64_t>(pass.computes.size());
    case StageKind::merge:
      return static_cast<int64_t>(pass.merges.size());
    case StageKind::finish:
      break;
  }
  return static_cast<int64_t>(pass.finishes.size());
}

}  // namespace cpscope
