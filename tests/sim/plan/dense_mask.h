#pragma once

#include "sim/plan/batch_slots.h"
#include "sim/plan/plan.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <string>
#include <vector>

namespace cpscope::tests {

/// True if key position j of a sequence is visible to query position i. One cell at a time, from
/// the text of the contract, section 2; shares no code with the planner, the checker or the
/// reference.
bool sees(const Scenario& scenario, int64_t sequence, int64_t i, int64_t j);

/// Number of times that each (query token, key token, head) of the packed padded batch is computed.
struct DenseCount {
  int64_t tokens = 0, kv_tokens = 0, heads = 0;
  std::vector<int32_t> count;  // [query token, key token, head]

  int32_t& at(int64_t q, int64_t k, int64_t head) {
    return count[static_cast<size_t>((q * kv_tokens + k) * heads + head)];
  }
};

/// 1 where the mask shows the cell, 0 elsewhere; padding and tail see nothing.
DenseCount count_visible_cells(const Scenario& scenario, const BatchSlots& slots);

/// Marks every cell of every band of every compute item, one by one through the item's own token
/// lists.
DenseCount paint_computes(const Plan& plan, const Pass& pass);

/// The first cell where the two differ, with both values; empty when they are equal.
std::string first_difference(const Plan& plan, const Pass& pass, DenseCount& expected,
                             DenseCount& seen);

/// K and V bytes that must reach a rank that does not own them, counted token by token.
int64_t count_necessary_kv_bytes(const Plan& plan, DenseCount& visible);

}  // namespace cpscope::tests
