#pragma once

#include <cstdint>
#include <vector>

namespace cpscope {

/// Position of one sequence of the batch in the packed padded buffers. Valid tokens are at the
/// front of the slot.
struct SequenceSlot {
  int64_t q_begin = 0;   // first packed padded query id
  int64_t q_valid = 0;   // valid query tokens
  int64_t q_slot = 0;    // query ids of the slot, >= q_valid
  int64_t kv_begin = 0;  // the same for keys and values
  int64_t kv_valid = 0;
  int64_t kv_slot = 0;

  friend bool operator==(const SequenceSlot&, const SequenceSlot&) = default;
};

/// The packed padded batch: slots in order, then a tail that belongs to no sequence.
struct BatchSlots {
  std::vector<SequenceSlot> sequences;
  int64_t tokens = 0;     // packed padded query ids, tail included
  int64_t kv_tokens = 0;  // packed padded key ids, tail included
};

}  // namespace cpscope
