#include "sim/run/grade/token_places.h"

#include "sim/run/grade/probe_parts.h"

#include <cstdlib>

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
                     .local_in_sequence = std::vector<int64_t>(tokens, 0),
                     .rows_of_slot = std::vector<int64_t>(tokens, 0),
                     .ids = ids_by_rank(layout, side),
                     .head_ranks = owners_of_heads(layout, side)};
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
  std::vector<int64_t> seen(sequences.size() + 1, 0);  // of each slot, then of the tail
  for (size_t rank = 0; rank < places.ids.size(); ++rank) {
    const std::vector<int64_t>& ids = places.ids[rank];
    const auto seen_of = [&](int64_t id) -> int64_t& {
      const int32_t slot = places.slot[static_cast<size_t>(id)];
      return slot < 0 ? seen.back() : seen[static_cast<size_t>(slot)];
    };
    for (size_t row = 0; row < ids.size(); ++row) {
      const auto at = static_cast<size_t>(ids[row]);
      places.rank[at] = static_cast<int32_t>(rank);
      places.local[at] = static_cast<int64_t>(row);
      places.local_in_sequence[at] = seen_of(ids[row])++;
    }
    for (const int64_t id : ids) places.rows_of_slot[static_cast<size_t>(id)] = seen_of(id);
    for (const int64_t id : ids) seen_of(id) = 0;
  }
  return places;
}

std::vector<std::vector<int64_t>> ids_by_rank(const Layout& layout, Side side) {
  std::vector<std::vector<int64_t>> ids;
  for (const std::vector<TokenRun>& runs : partition_of(layout, side)) ids.push_back(expand(runs));
  return ids;
}

std::vector<int64_t> ids_in(const std::vector<std::vector<int64_t>>& own,
                            const std::vector<std::vector<int64_t>>& other) {
  std::vector<int64_t> ids;
  for (size_t rank = 0; rank < own.size(); ++rank) {
    for (size_t row = 0; row < own[rank].size(); ++row) {
      const auto at = static_cast<size_t>(own[rank][row]);
      if (ids.size() <= at) ids.resize(at + 1);
      ids[at] = other[rank][row];
    }
  }
  return ids;
}

std::vector<int64_t> ids_with_halves_exchanged(const TokenPlaces& places) {
  std::vector<int64_t> partners(places.slot.size(), -1);
  for (size_t at = 0; at < partners.size(); ++at) {
    const int64_t half = places.rows_of_slot[at] / 2;
    const auto& ids = places.ids[static_cast<size_t>(places.rank[at])];
    const int64_t row = places.local[at] + (places.local_in_sequence[at] < half ? half : -half);
    if (places.rows_of_slot[at] % 2 != 0 || row < 0 || row >= std::ssize(ids)) continue;
    const auto partner = static_cast<size_t>(ids[static_cast<size_t>(row)]);
    const int64_t apart = places.local_in_sequence[partner] - places.local_in_sequence[at];
    if (places.slot[partner] == places.slot[at] && std::abs(apart) == half)
      partners[at] = static_cast<int64_t>(partner);
  }
  return partners;
}

}  // namespace cpscope
