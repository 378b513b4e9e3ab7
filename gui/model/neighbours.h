#pragma once

#include "gui/model/plan_index.h"

#include <cstddef>
#include <vector>

namespace cpscope::gui {

/// Neighbours of an item in the order of the schedule, limited to the requested number.
struct Neighbours {
  std::vector<ItemId> items;
  bool has_more = false;
};

/// The writers of the rows that an item reads in a buffer: for each row the latest one, and if that
/// is a transfer that adds, also the writers of the content before it. In plan order; if there are
/// too many, the latest ones. Empty for inputs, which have their content from the beginning.
/// Searches the stages in between.
Neighbours find_writers(const PlanIndex& plan, const ItemId& item, BufferId buffer, size_t most);

/// The items that read what an item has written to a buffer, by the same rules, in plan order.
Neighbours find_readers(const PlanIndex& plan, const ItemId& item, BufferId buffer, size_t most);

}  // namespace cpscope::gui
