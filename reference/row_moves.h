#pragma once

#include "reference/rank_memory.h"
#include "sim/run/tensor.h"

#include <cstdint>

namespace cpscope::reference {

/// A running sum of gradients, rounded to the dtype if the scenario accumulates in it.
template <class T>
T round_sum(const Numerics& numerics, T value);

/// Moves the rows of one transfer from the sender's buffer to the receiver's, rounded as the wire
/// requires, and replaces or adds as the item's write mode says.
template <class T>
void move_rows(const Plan& plan, const TransferItem& item, RankMemory<T>& memory);

/// Fills `to` with the rows of `from` that the reorder names, in its order.
template <class T>
void gather_rows(const Plan& plan, const ReorderItem& item, RankMemory<T>& memory);

/// Copies one array of a buffer (`second`: V or lse) to the tokens of its rows, in a packed tensor
/// of `all_heads` heads.
template <class T>
void scatter_to_tokens(const Plan& plan, BufferId id, RunListId tokens, bool second,
                       int32_t all_heads, const RankMemory<T>& memory, Tensor& tensor);

}  // namespace cpscope::reference
