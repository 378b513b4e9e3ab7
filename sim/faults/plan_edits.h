#pragma once

#include "sim/plan/plan.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace cpscope {

// Edits that turn a right plan into a wrong one. None lets an executor read or write outside a
// buffer.

/// Removes one item; the items after it move up.
template <class Item>
void drop_item(Pass& pass, std::vector<Item>& items, StageKind kind, int64_t index) {
  items.erase(items.begin() + index);
  for (Stage& stage : pass.stages) {
    if (stage.kind != kind) continue;
    if (stage.begin > index) --stage.begin;
    if (stage.end > index) --stage.end;
  }
}

/// Inserts a copy of item `index` directly after it.
template <class Item>
void repeat_item(Pass& pass, std::vector<Item>& items, StageKind kind, int64_t index) {
  const Item copy = items[static_cast<size_t>(index)];
  items.insert(items.begin() + index + 1, copy);
  for (Stage& stage : pass.stages) {
    if (stage.kind != kind) continue;
    if (stage.begin > index) ++stage.begin;
    if (stage.end > index) ++stage.end;
  }
}

/// Adds a list of token ids or rows to the pool.
RunListId add_list(Plan& plan, const std::vector<int64_t>& ids);

/// Replaces the slices of a forward item and of every item that shares them, and recounts its
/// pairs.
void replace_slices(Plan& plan, int64_t forward_compute, const std::vector<BandSlice>& slices);

/// The first item of a pass that meets the condition.
template <class Item, class Meets>
std::optional<int64_t> find_item(const std::vector<Item>& items, Meets meets) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (meets(items[i])) return static_cast<int64_t>(i);
  }
  return std::nullopt;
}

}  // namespace cpscope
