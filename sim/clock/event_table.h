#pragma once

#include "sim/plan/item_event.h"
#include "sim/plan/plan.h"
#include "sim/plan/visit_items.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cpscope {

/// Index of an item's event in a list of events, for one pass; 8 bytes per item. The events must be
/// of items that the plan has; if an item has several events, the first counts.
class EventTable {
 public:
  EventTable(const Plan& plan, Direction direction, std::span<const ItemEvent> events) {
    for (size_t kind = 0; kind < events_.size(); ++kind) {
      const int64_t items = count_items(plan.pass(direction), static_cast<StageKind>(kind));
      events_[kind].assign(static_cast<size_t>(items), kNone);
    }
    for (size_t e = 0; e < events.size(); ++e) {
      const ItemId& item = events[e].item;
      if (item.direction != direction) continue;
      int64_t& event = events_[static_cast<size_t>(item.kind)][static_cast<size_t>(item.index)];
      if (event == kNone) event = static_cast<int64_t>(e);
    }
  }

  /// kNone if there is no event.
  int64_t find(StageKind kind, int64_t index) const {
    return events_[static_cast<size_t>(kind)][static_cast<size_t>(index)];
  }

  static constexpr int64_t kNone = -1;

 private:
  std::array<std::vector<int64_t>, 5> events_;  // [StageKind][item]
};

}  // namespace cpscope
