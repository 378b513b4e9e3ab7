#pragma once

#include <cstdint>
#include <vector>

namespace cpscope {

/// Queries, or keys and values.
enum class Side : uint8_t { q, kv };

/// One side of a sequence's slot.
struct SlotSide {
  int64_t begin = 0;  // first packed padded id
  int64_t valid = 0;  // valid tokens
  int64_t slot = 0;   // ids of the slot, >= valid

  int64_t end() const { return begin + slot; }
  int64_t valid_end() const { return begin + valid; }
};

/// Position of one sequence of the batch in the packed padded buffers. Valid tokens are at the
/// front of the slot.
struct SequenceSlot {
  int64_t q_begin = 0;   // first packed padded query id
  int64_t q_valid = 0;   // valid query tokens
  int64_t q_slot = 0;    // query ids of the slot, >= q_valid
  int64_t kv_begin = 0;  // the same for keys and values
  int64_t kv_valid = 0;
  int64_t kv_slot = 0;

  SlotSide side(Side side) const {
    return side == Side::q ? SlotSide{q_begin, q_valid, q_slot}
                           : SlotSide{kv_begin, kv_valid, kv_slot};
  }
  friend bool operator==(const SequenceSlot&, const SequenceSlot&) = default;
};

/// The packed padded batch: slots in order, then a tail that belongs to no sequence.
struct BatchSlots {
  std::vector<SequenceSlot> sequences;
  int64_t tokens = 0;     // packed padded query ids, tail included
  int64_t kv_tokens = 0;  // packed padded key ids, tail included

  int64_t tokens_of(Side side) const { return side == Side::q ? tokens : kv_tokens; }
};

}  // namespace cpscope
