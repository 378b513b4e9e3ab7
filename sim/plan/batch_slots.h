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
  int64_t slot = 0;   // ids of the slot, >= front + valid
  int64_t front = 0;  // ids of padding before the first valid token

  int64_t end() const { return begin + slot; }
  int64_t valid_begin() const { return begin + front; }
  int64_t valid_end() const { return begin + front + valid; }
  /// True if the id is a valid token of this sequence.
  bool is_valid(int64_t id) const { return id >= valid_begin() && id < valid_end(); }
};

/// Position of one sequence of the batch in the packed padded buffers. Its valid tokens are
/// consecutive ids of the slot, and the others are padding: those before them are counted by
/// `q_front` and `kv_front`.
struct SequenceSlot {
  int64_t q_begin = 0;   // first packed padded query id
  int64_t q_valid = 0;   // valid query tokens
  int64_t q_slot = 0;    // query ids of the slot, >= q_valid
  int64_t kv_begin = 0;  // the same for keys and values
  int64_t kv_valid = 0;
  int64_t kv_slot = 0;
  int64_t q_front = 0;   // padding ids before the first valid query
  int64_t kv_front = 0;  // the same for keys and values

  int64_t q_valid_begin() const { return q_begin + q_front; }     // id of the query at position 0
  int64_t kv_valid_begin() const { return kv_begin + kv_front; }  // id of the key at position 0
  SlotSide side(Side side) const {
    return side == Side::q ? SlotSide{q_begin, q_valid, q_slot, q_front}
                           : SlotSide{kv_begin, kv_valid, kv_slot, kv_front};
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
