#include "sim/plan/rotary_positions.h"

#include <numeric>

namespace cpscope {

std::vector<int64_t> rotary_positions(const Scenario& scenario, const BatchSlots& slots,
                                      Side side) {
  std::vector<int64_t> positions(static_cast<size_t>(slots.tokens_of(side)), 0);
  const std::vector<int64_t>& given =
      side == Side::q ? scenario.batch.q_positions : scenario.batch.kv_positions;
  const bool counts_from_end = side == Side::q && scenario.attention.rotates_queries_from_end();
  auto next = given.begin();
  for (const SequenceSlot& sequence : slots.sequences) {
    const SlotSide slot = sequence.side(side);
    const int64_t first = counts_from_end ? sequence.kv_valid - sequence.q_valid : 0;
    const auto begin = positions.begin() + slot.valid_begin();
    std::iota(begin, positions.begin() + slot.end(), first);
    if (given.empty()) continue;
    std::copy(next, next + slot.valid, begin);
    next += slot.valid;
  }
  return positions;
}

}  // namespace cpscope
