#pragma once

#include "sim/run/judge.h"
#include "sim/scenario/scenario.h"

namespace cpscope {

/// What a step with these inputs leaves to the next one (Fp8History). The amax of q, k and v
/// together, and of d_out, are those of the valid rows. No attention is computed: the others are
/// bounds, or what a sum of random terms does not exceed.
/// out: the largest |v|, because a row of out is a mean of values.
/// d_logits (dS): scale * |d_out row| * |v row| / 2, because p * (1 - p) <= 1/4.
/// dq: 4 * d_logits * the largest |k|. dk, dv: d_logits * |q|, and |d_out|, times the root of the
/// number of (query, query head) that a key may serve.
Fp8History history_of(const Scenario& scenario, const RunInputs& inputs);

/// The history that a run of this scenario starts from: with recipe delayed of the step with the
/// inputs of the seed before, and if its tensors have few values, whose largest tells little, the
/// largest of several steps, as TransformerEngine's amax_history_len keeps them (1024 by default);
/// with recipe current the same but for q, k, v and d_out, which are scaled by their own amax (0);
/// with mxfp8 nothing.
Fp8History history_before(const Scenario& scenario, const BatchSlots& slots);

/// The history for tensors of unknown origin: a step with the same tensors.
Fp8History history_of_record(const Scenario& scenario, const RunInputs& inputs);

}  // namespace cpscope
