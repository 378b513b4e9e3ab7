#pragma once

#include "kernels/lower/lowered_plan.h"

#include <cstdint>
#include <vector>

/// The passes of lowering, in the order in which they run. Each can be left out.
namespace cpscope::kernels {

/// Joins each rank's two compute items, with its own keys and values and with received ones, as
/// group_cast plans them. Both are in one buffer, one after the other with some rows between, and
/// so are their gradients; the own gradients go home like those of other ranks. No partial is left
/// to merge. Nothing is joined if no rank computes twice in this way, if kernels do not support it
/// (`can_join`), or if received rows have another use.
void join_computes(LoweredPlan& lowered, const Lowering& lowering);

/// Lets transfers write to the destination of a reorder, or read from the source of one. The buffer
/// between is not needed.
void skip_reorders(LoweredPlan& lowered, const Lowering& lowering);

/// Lets the first transfer into a sum of gradients replace its content, which then needs no zeros,
/// and the last one round it. A sum that is only sent on is rounded by that transfer.
void sum_gradients(LoweredPlan& lowered, const Lowering& lowering);

/// Lets compute items write to the destination of their first merge, and do later merges
/// (`can_merge`). The last merge rounds, instead of a finish. The results are the same, bit for
/// bit, except for dq: a kernel adds its tiles to the accumulator one by one.
void save_merges(LoweredPlan& lowered, const Lowering& lowering);

/// Stores an `out` that one kernel writes, and nothing changes, in the dtype (`writes_dtype`).
void narrow_outs(LoweredPlan& lowered, const Lowering& lowering);

/// Stores gradients in the dtype that are written once by a kernel that can write it, or arrive
/// rounded, or arrive rounded and are added to once, if every later use rounds them. Gradients that
/// are sent around a ring are an example.
void narrow_gradients(LoweredPlan& lowered, const Lowering& lowering);

/// Lets a rank add up the gradients of keys and values that several ranks send to it when all have
/// arrived: one pass over memory instead of one for every sender. The order and the results are
/// those of single additions. Rows that no rank sends are 0.
void add_shares(LoweredPlan& lowered, const Lowering& lowering);

/// Lets a kernel write gradients that only transfers read twice: in fp32 the rows that stay on
/// their rank unrounded, in the dtype those that are sent.
void copy_for_wires(LoweredPlan& lowered, const Lowering& lowering);

/// Lets every rank send to its nearest neighbours first, so that all receive from different ones.
/// Additions keep their order; shares are added in the order of the plan.
void send_nearest_first(LoweredPlan& lowered, const Lowering& lowering);

/// If every rank computes once in a pass, cuts the transfers before into pieces of heads, one after
/// another: the first piece is computed while the others are in flight.
void cut_inputs(LoweredPlan& lowered, const Lowering& lowering);

/// If every rank computes once and only sends afterwards, makes the last heads a separate item: the
/// results of the others are sent while it runs.
void cut_results(LoweredPlan& lowered, const Lowering& lowering);

/// Stores each `out` that is filled only from narrow ones in the dtype too.
void narrow_received_outs(LoweredPlan& lowered, const Lowering& lowering);

/// Removes the rows of buffers that no item uses.
void drop_unused_buffers(LoweredPlan& lowered, const Lowering& lowering);

/// Ends of the pieces of `heads`. Small pieces come first, because nothing is computed during the
/// transfer of the first. `head_bytes`: bytes that a rank sends for each head. Rows of one head are
/// short, and copies of them slow: if heads are small, the first piece, which a kernel sends, has
/// more of them.
std::vector<int32_t> cut_heads(int32_t heads, int32_t most_pieces, int64_t head_bytes);

}  // namespace cpscope::kernels
