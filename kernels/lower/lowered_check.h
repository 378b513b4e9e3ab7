#pragma once

#include "kernels/lower/lowered_plan.h"
#include "sim/base/result.h"

#include <optional>

namespace cpscope::kernels {

/// Proves that a lowered plan gives the plan's answers, or returns an error that names the first
/// place where it does not. Both plans are carried out with a number for each row that stands for
/// everything that was read to make it and for every rounding, so two rows have the same number
/// only if they were computed from the same reads in an order that gives the same result. Proved:
/// - every answer (out, dq, dk and dv of every rank, and the buffers whose lse is the answer's) is
///   computed from the same rows, merged as often, and rounded where the plan rounds;
/// - no item reads a row that no item has written;
/// - every pair of ranks exchanges as many bytes in each pass as planned;
/// - compute items have the plan's pairs;
/// - pieces of inputs come in the order in which the receiver's kernel waits for them, and hold
///   the heads that it expects.
/// Heads that no item and no buffer tells apart are carried out once, and so are rows that every
/// list takes together. KV heads are carried out one after another on each thread. Cost: O(rows of
/// all items x head ranges): 0.3 s and 50 MB for one sequence of 1M tokens on 8 ranks, 19 s and 1.2
/// GB on two cores for documents of any length.
std::optional<Error> check_lowered(const Plan& plan, const LoweredPlan& lowered);

}  // namespace cpscope::kernels
