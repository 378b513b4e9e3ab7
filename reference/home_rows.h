#pragma once

#include "reference/rank_memory.h"
#include "sim/run/judge.h"

namespace cpscope::reference {

/// Copies every rank's rows of the packed inputs into its home buffers; with RoPE, q and k are
/// rotated and rounded to the dtype.
template <class T>
void load_inputs(const Plan& plan, const RunInputs& inputs, int threads, RankMemory<T>& memory);

/// Collects out and lse in packed padded tensors. lse is never sent: it is read on the rank that
/// made it. A row that no rank owns stays NaN, so that it is noticed.
template <class T>
void collect_forward(const Plan& plan, const RankMemory<T>& memory, int threads, Answer& answer);

/// Collects dq, dk and dv (if v is not a part of k) from the home buffers, rotated back if RoPE
/// rotated q and k.
template <class T>
void collect_backward(const Plan& plan, const RankMemory<T>& memory, int threads, Answer& answer);

}  // namespace cpscope::reference
