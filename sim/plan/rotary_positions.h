#pragma once

#include "sim/plan/batch_slots.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <vector>

namespace cpscope {

/// [packed padded id] The position by which RoPE rotates a row of this side (contract, keys
/// rope_q_position and positions_file); in padding the place in the slot, in the tail 0.
std::vector<int64_t> rotary_positions(const Scenario& scenario, const BatchSlots& slots, Side side);

}  // namespace cpscope
