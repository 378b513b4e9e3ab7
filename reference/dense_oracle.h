#pragma once

#include "reference/mask_predicate.h"
#include "sim/run/judge.h"
#include "sim/scenario/scenario.h"

#include <cstdint>

namespace cpscope::reference {

/// Grades nothing itself: computes attention (`exact`, in double) and a plain low-precision run
/// with as many `hops` (`plain`).
/// Shapes: as RunInputs, packed padded token order. lse is natural log, the sink included. Empty
/// and padding rows: out 0, lse -inf, gradients 0. Padding rows of the inputs are never read.
/// backward = false leaves dq, dk, dv and d_sink empty. max_logit is after scale and softcap. dq
/// and dk are gradients of q and k before RoPE. Answers do not depend on the thread count.
/// Memory: both answers, and per thread one head's rows and 4 * 128 * num_keys numbers. Time:
/// causal 2048 tokens, 8 heads of head_dim 64, forward and backward, both answers: about 1 s on two
/// x86-64-v3 cores; grows with the visible pairs of every head. Errors: cancelled.
Result<Verdict> judge(const Scenario& scenario, const RunInputs& inputs, const Hops& hops,
                      const RunControl& control);

/// The same for a few rows, in the form of SampledJudge (sim/run/judge.h). Time and memory: every
/// judged row is evaluated once with all rows of its sequence, so linear in the tokens for a given
/// number of rows; keys of 1 MiB tokens take twice the memory of their rows per thread.
Result<Verdict> judge_rows(const Scenario& scenario, const RunInputs& inputs, const Answer& seen,
                           const JudgedRows& rows, const Hops& hops, const RunControl& control);

/// The contribution of some queries alone to dk and dv of some keys, in the form of ShareJudge.
Result<Answer> shares_of_queries(const Scenario& scenario, const RunInputs& inputs,
                                 const Answer& given, const JudgedRows& pairs,
                                 const RunControl& control);

/// All functions of the oracle, for code that grades answers.
Oracle dense_oracle();

/// Only the exact part of judge(). The first version can fail as judge() does; the second is never
/// cancelled.
Result<Answer> judge_exactly(const Scenario& scenario, const RunInputs& inputs,
                             const RunControl& control);
Answer exact_answer(const Scenario& scenario, const RunInputs& inputs);

/// Only the plain part of judge().
Answer plain_answer(const Scenario& scenario, const RunInputs& inputs, const Hops& hops);

}  // namespace cpscope::reference
