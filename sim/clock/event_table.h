#pragma once

#include "sim/plan/plan.h"
#include "sim/plan/item_event.h"

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
  EventTable(const Plan& plan, bool is_backward, std::span<const ItemEvent> events) {
    const Pass& pass = is_backward ? plan.backward : plan.forward;
    const std::array<size_t, 5> sizes = {pass.transfers.size(), pass.reorders.size(),
                                         pass.computes.size(), pass.merges.size(),
                                         pass.finishes.size()};
    for (size_t kind = 0; kind < sizes.size(); ++kind) events_[kind].assign(sizes[kind], kNone);
    for (size_t e = 0; e < events.size(); ++e) {
      const ItemId& item = events[e].item;
      if (item.is_backward != is_backward) continue;
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
