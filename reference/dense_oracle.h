#pragma once

#include "reference/mask_predicate.h"
#include "sim/run/judge.h"
#include "sim/scenario/scenario.h"

#include <cstdint>

namespace cpscope::reference {

/// Grades nothing itself: computes what attention is (`exact`, in double) and what a plain
/// low-precision run in as many `hops` makes of it (`plain`).
/// Shapes: as RunInputs, packed padded token order. lse is natural log, the sink included.
/// Empty and padding rows: out 0, lse -inf, gradients 0. Padding rows of the inputs are never read.
/// backward = false leaves dq, dk, dv and d_sink empty. max_logit is after scale and softcap.
/// dq and dk are gradients of q and k before RoPE. Answers do not depend on the thread count.
/// Memory: both answers, and per thread one head's rows and 4 * 128 * num_keys numbers.
/// Time: causal 2048 tokens, 8 heads of 64 lanes, forward and backward, both halves: about 1 s on
/// two x86-64-v3 cores; grows with the visible pairs of every head.
/// Errors: only that it was cancelled.
Result<Verdict> judge(const Scenario& scenario, const RunInputs& inputs, const Hops& hops,
                      const RunControl& control);

/// The same for a few rows, in the shape of SampledJudge (sim/run/judge.h). Time and memory: every
/// judged row meets all rows of its sequence once, so linear in the tokens for a given number of
/// rows; keys of 1 MiB tokens take their rows twice a thread.
Result<Verdict> judge_rows(const Scenario& scenario, const RunInputs& inputs, const Answer& seen,
                           const JudgedRows& rows, const Hops& hops, const RunControl& control);

/// What some queries alone give to dk and dv of some keys, in the shape of ShareJudge.
Result<Answer> shares_of_queries(const Scenario& scenario, const RunInputs& inputs,
                                 const Answer& given, const JudgedRows& pairs,
                                 const RunControl& control);

/// All of it, to be plugged in where answers are graded.
Oracle dense_oracle();

/// Only the exact half of judge(). The first with its errors, the second never cancelled.
Result<Answer> judge_exactly(const Scenario& scenario, const RunInputs& inputs,
                             const RunControl& control);
Answer exact_answer(const Scenario& scenario, const RunInputs& inputs);

/// Only the plain half of judge().
Answer plain_answer(const Scenario& scenario, const RunInputs& inputs, const Hops& hops);

}  // namespace cpscope::reference
