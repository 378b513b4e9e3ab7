#pragma once

#include "sim/plan/batch_slots.h"
#include "sim/plan/plan.h"
#include "sim/run/inputs.h"
#include "sim/run/judge.h"
#include "sim/scenario/scenario.h"

#include <vector>

namespace cpscope {

/// The inputs of a scenario in packed padded order. With `poison` every padding row of q, k, v and
/// d_out is NaN.
RunInputs make_run_inputs(const Scenario& scenario, const BatchSlots& slots, bool poison);

/// The same for a plan, with the weights that its items keep (dropout_mode "framework").
RunInputs make_run_inputs(const Plan& plan, bool poison);

/// The bias of a scenario that has one. With `poison` cells beyond a sequence are NaN, else 0.
Tensor make_bias(const Scenario& scenario, bool poison);

/// The weights w_k or w_v of a scenario that expands latent rows; N(0,1)/sqrt(latent_dim), rounded
/// to the dtype, so that expanded elements are N(0,1).
Tensor make_row_weights(const Scenario& scenario, InputTensor which);

/// One of these inputs, not the sink, the bias and the weights; v is empty if k stands for both.
Tensor make_run_input(const Scenario& scenario, const BatchSlots& slots, InputTensor which,
                      bool poison);

/// [packed padded id] The places of one side's tokens.
std::vector<TokenPlace> places_of_ids(const BatchSlots& slots, Side side);

/// [packed padded id] True for a valid token.
std::vector<bool> valid_ids(const BatchSlots& slots, Side side);

/// Bytes that make_run_inputs would allocate.
int64_t run_inputs_bytes(const Scenario& scenario, const BatchSlots& slots);

/// Bytes of the gradients of the keys and values of all heads, which the oracle's two answers hold
/// where latent rows are expanded, before they become one row; else 0.
int64_t head_gradients_bytes(const Scenario& scenario, const BatchSlots& slots);

}  // namespace cpscope
