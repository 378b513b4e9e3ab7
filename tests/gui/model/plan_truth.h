#pragma once

#include "gui/model/plan_index.h"

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace cpscope::tests {

/// Token ids of every rank in local order, from the layout alone.
inline std::vector<std::vector<int64_t>> local_tokens(const gui::PlanIndex& index, Side side) {
  std::vector<std::vector<int64_t>> tokens;
  for (const auto& runs : index.plan().layout.runs(side)) tokens.push_back(expand(runs));
  return tokens;
}

/// Bytes of stages [first, end) by (src, dst), added up item by item.
inline std::map<std::pair<int32_t, int32_t>, int64_t> add_up_links(const gui::PlanIndex& index,
                                                                   int32_t first, int32_t end) {
  std::map<std::pair<int32_t, int32_t>, int64_t> sums;
  for (int32_t s = first; s < end; ++s) {
    const gui::StageRef& stage = index.stages()[s];
    if (stage.kind != StageKind::transfer) continue;
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      const TransferItem& item = index.pass(stage.direction).transfers[i];
      if (item.src != item.dst && item.bytes > 0)
        sums[{to_index(item.src), to_index(item.dst)}] += item.bytes;
    }
  }
  return sums;
}

}  // namespace cpscope::tests
