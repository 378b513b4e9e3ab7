#include "sim/run/grade/token_places.h"

#include <algorithm>

namespace cpscope {

TokenPlaces places_of(const Layout& layout, Side side) {
  const auto tokens = static_cast<size_t>(layout.slots.tokens_of(side));
  TokenPlaces places{.sequence = std::vector<int32_t>(tokens, -1),
                     .position = std::vector<int64_t>(tokens, -1),
                     .in_slot = std::vector<int64_t>(tokens, -1),
                     .slot = std::vector<int32_t>(tokens, -1),
                     .valid_before = std::vector<int64_t>(tokens, 0),
                     .rank = std::vector<int32_t>(tokens, 0),
                     .local = std::vector<int64_t>(tokens, 0),
                     .local_in_sequence = std::vector<int64_t>(tokens, 0)};
  const std::vector<SequenceSlot>& sequences = layout.slots.sequences;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const SlotSide slot = sequences[s].side(side);
    for (int64_t id = slot.begin; id < slot.end(); ++id) {
      const auto at = static_cast<size_t>(id);
      places.slot[at] = static_cast<int32_t>(s);
      places.position[at] = id - slot.valid_begin();
      places.in_slot[at] = id - slot.begin;
      if (slot.is_valid(id)) places.sequence[at] = static_cast<int32_t>(s);
    }
  }
  int64_t valid = 0;
  for (size_t at = 0; at < tokens; ++at) {
    places.valid_before[at] = valid;
    valid += places.sequence[at] >= 0 ? 1 : 0;
  }
  std::vector<int64_t> seen(sequences.size(), 0);
  for (const std::vector<TokenRun>& runs : layout.runs(side).values()) {
    const auto rank = static_cast<int32_t>(places.ids.size());
    places.ids.push_back(expand(runs));
    std::fill(seen.begin(), seen.end(), 0);
    for (size_t row = 0; row < places.ids.back().size(); ++row) {
      const auto at = static_cast<size_t>(places.ids.back()[row]);
      places.rank[at] = rank;
      places.local[at] = static_cast<int64_t>(row);
      if (places.slot[at] >= 0)
        places.local_in_sequence[at] = seen[static_cast<size_t>(places.slot[at])]++;
    }
  }
  return places;
}

}  // namespace cpscope
