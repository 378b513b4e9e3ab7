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
  std::vector<int32_t> rank;               // owner
  std::vector<int64_t> local;              // row of the owner's local buffer
  std::vector<int64_t> local_in_sequence;  // the same, counted within the sequence
  std::vector<std::vector<int64_t>> ids = {};  // [rank][local row]

  int64_t tokens() const { return static_cast<int64_t>(sequence.size()); }
};

TokenPlaces places_of(const Layout& layout, Side side);

}  // namespace cpscope
