#pragma once

#include "gui/model/plan_index.h"

#include <cstdint>

namespace cpscope::gui {

/// The tiles of a kernel with edge x edge tiles over the local rows of one compute item, for one
/// head.
struct ItemTiles {
  int64_t edge = 0;
  int64_t full = 0, partial = 0, empty = 0;  // tiles
  int64_t visible_pairs = 0;
  int64_t computed_pairs = 0;  // pairs of full and partial tiles

  int64_t tiles() const { return full + partial + empty; }
  int64_t wasted_pairs() const { return computed_pairs - visible_pairs; }
};

/// Counts without visiting full or empty tiles one by one. Work and memory are proportional to the
/// tiles on the edges of the item's bands; beyond kMostItemRimTiles of them it gives up (edge = 0).
ItemTiles count_item_tiles(const Plan& plan, const ComputeItem& item, int64_t edge);

inline constexpr int64_t kMostItemRimTiles = 2'000'000;

}  // namespace cpscope::gui
