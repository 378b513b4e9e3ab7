#pragma once

#include "sim/scenario/scenario.h"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace cpscope {

/// Two slices, by index, first < second, and one cell that both make visible.
struct SliceOverlap {
  int64_t first = 0;
  int64_t second = 0;
  int64_t q = 0;  // valid query id
  int64_t k = 0;  // valid key id

  friend bool operator==(const SliceOverlap&, const SliceOverlap&) = default;
};

/// One cell that both slices make visible, or nothing: exact, in closed form on their bands.
std::optional<SliceOverlap> find_shared_cell(const MaskSlice& a, const MaskSlice& b);

struct SliceOverlapReport {
  std::vector<SliceOverlap> overlaps;  // sorted by (second, first), at most `max_reported`
  bool is_complete = true;             // false: too many rectangles intersect, the search stopped
};

/// All pairs of slices that share a cell. The search sweeps over rows and keeps the open slices in
/// a tree over their columns, so slices whose rectangles do not intersect cost O(log n) each.
SliceOverlapReport find_slice_overlaps(std::span<const MaskSlice> slices, size_t max_reported);

}  // namespace cpscope
