#pragma once

// Private to the search for causes: where every token belongs.

#include "sim/plan/layout.h"

#include <cstdint>
#include <vector>

namespace cpscope {

/// Sequence, position and owner of every packed padded id of one side.
struct TokenPlaces {
  std::vector<int32_t> sequence;           // -1: padding
  std::vector<int64_t> position;           // from the first valid token; -1: the tail
  std::vector<int64_t> in_slot;            // from the begin of the slot; -1: the tail
  std::vector<int32_t> slot;               // sequence of the slot, padding included; -1: the tail
  std::vector<int64_t> valid_before;       // valid tokens of the batch before this one
  std::vector<int32_t> rank;               // owner; rank 0 of queries where ranks own heads
  std::vector<int64_t> local;              // row of the owner's local buffer
  std::vector<int64_t> local_in_sequence;  // the same, counted within the slot
  std::vector<int64_t> rows_of_slot;       // how many rows of its slot the owner has
  std::vector<std::vector<int64_t>> ids = {};  // [rank][local row]
  std::vector<int32_t> head_ranks = {};        // [query head] owner where ranks own heads

  int64_t tokens() const { return static_cast<int64_t>(sequence.size()); }
  /// The owner of a row.
  int32_t rank_of(int64_t token, int64_t head) const {
    return head_ranks.empty() ? rank[static_cast<size_t>(token)]
                              : head_ranks[static_cast<size_t>(head)];
  }
};

TokenPlaces places_of(const Layout& layout, Side side);

/// [rank] The packed padded ids of one side in local order.
std::vector<std::vector<int64_t>> ids_by_rank(const Layout& layout, Side side);

/// [token] The id that stands in the same place of the same rank's buffer in the other order.
std::vector<int64_t> ids_in(const std::vector<std::vector<int64_t>>& own,
                            const std::vector<std::vector<int64_t>>& other);

/// [token] The id that would stand in its place if each rank's halves of each slot were exchanged;
/// -1 where the rank has an odd number of rows of the slot, or not in one piece.
std::vector<int64_t> ids_with_halves_exchanged(const TokenPlaces& places);

}  // namespace cpscope
