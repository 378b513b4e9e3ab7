#pragma once

#include "gui/model/plan_index.h"
#include "gui/model/target.h"

#include <cstdint>
#include <vector>

namespace cpscope::gui {

/// Neighbours of an item in the order of the schedule, at most as many as were asked for.
struct Neighbours {
  std::vector<ItemTarget> items;
  bool has_more = false;
};

/// Buffers that an item reads, and writes. Computes without a slice touch none. What a merge or a
/// finish works on is both.
std::vector<BufferId> buffers_read(const Plan& plan, const ItemTarget& item);
std::vector<BufferId> buffers_written(const Plan& plan, const ItemTarget& item);

/// Who wrote what an item reads of a buffer: of each row the latest writer, and where that one was
/// a transfer that adds, also who wrote what it was added to. In plan order, the latest if there
/// are more. Empty for inputs, which stand there from the beginning. Looks at the stages in
/// between.
Neighbours find_writers(const PlanIndex& plan, const ItemTarget& item, BufferId buffer,
                        size_t most);

/// Who reads what an item has written to a buffer, as find_writers sees it, in plan order.
Neighbours find_readers(const PlanIndex& plan, const ItemTarget& item, BufferId buffer,
                        size_t most);

}  // namespace cpscope::gui
