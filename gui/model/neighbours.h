#pragma once

#include "gui/model/plan_index.h"
#include "gui/model/target.h"

#include <cstdint>
#include <vector>

namespace cpscope::gui {

/// Neighbours of an item in the order of the schedule, limited to the requested number.
struct Neighbours {
  std::vector<ItemTarget> items;
  bool has_more = false;
};

/// The buffers that an item reads, and writes. Computes without a slice access none. The buffer
/// that a merge or a finish updates is in both.
std::vector<BufferId> buffers_read(const Plan& plan, const ItemTarget& item);
std::vector<BufferId> buffers_written(const Plan& plan, const ItemTarget& item);

/// The writers of the rows that an item reads in a buffer: for each row the latest one, and if that
/// is a transfer that adds, also the writers of the content before it. In plan order; if there are
/// too many, the latest ones. Empty for inputs, which have their content from the beginning.
/// Searches the stages in between.
Neighbours find_writers(const PlanIndex& plan, const ItemTarget& item, BufferId buffer,
                        size_t most);

/// The items that read what an item has written to a buffer, by the same rules, in plan order.
Neighbours find_readers(const PlanIndex& plan, const ItemTarget& item, BufferId buffer,
                        size_t most);

}  // namespace cpscope::gui
