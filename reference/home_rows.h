#pragma once

#include "reference/rank_memory.h"
#include "sim/run/judge.h"

namespace cpscope::reference {

/// Copies every rank's rows of the packed inputs into its home buffers; q and k are rotated where
/// RoPE asks for it and rounded to the dtype.
template <class T>
void load_inputs(const Plan& plan, const RunInputs& inputs, int threads, RankMemory<T>& memory);

/// Reads out and lse into packed padded tensors. lse never travels: it is read where it was made. A
/// row that nobody owns stays NaN and is seen.
template <class T>
void collect_forward(const Plan& plan, const RankMemory<T>& memory, int threads, Answer& answer);

/// Reads dq, dk and dv from the home buffers, turned back where RoPE turned q and k.
template <class T>
void collect_backward(const Plan& plan, const RankMemory<T>& memory, int threads, Answer& answer);

}  // namespace cpscope::reference
