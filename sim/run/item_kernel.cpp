#include "sim/run/item_kernel.h"

#include <algorithm>

namespace cpscope {

std::optional<RowBoundaries> find_row_boundaries(std::span<const TokenRun> tokens,
                                                 const BatchSlots& slots, Side side) {
  const auto sequences = static_cast<int64_t>(slots.sequences.size());
  std::vector<int32_t> valid(slots.sequences.size(), 0), rows(slots.sequences.size(), 0);
  int64_t open = 0;  // the sequence of the present rows; the tail comes after the last one
  bool has_padding = false;
  for (const TokenRun& run : tokens) {
    for (int64_t token = run.begin; token < run.end; token += run.stride) {
      const auto after = std::upper_bound(
          slots.sequences.begin(), slots.sequences.end(), token,
          [&](int64_t id, const SequenceSlot& slot) { return id < slot.side(side).begin; });
      int64_t s = (after - slots.sequences.begin()) - 1;
      const SlotSide slot =
          slots.sequences[static_cast<size_t>(std::max<int64_t>(0, s))].side(side);
      if (s < 0 || token >= slot.end()) s = sequences;
      if (s < open) return std::nullopt;
      if (s != open) has_padding = false;
      open = s;
      if (s == sequences) continue;
      ++rows[s];
      if (!slot.is_valid(token)) {
        has_padding = true;
      } else if (has_padding) {
        return std::nullopt;
      } else {
        ++valid[s];
      }
    }
  }
  RowBoundaries boundaries{{0}, {0}};
  for (int64_t s = 0; s < sequences; ++s) {
    boundaries.cu_seqlens.push_back(boundaries.cu_seqlens.back() + valid[s]);
    boundaries.cu_seqlens_padded.push_back(boundaries.cu_seqlens_padded.back() + rows[s]);
  }
  return boundaries;
}

}  // namespace cpscope
