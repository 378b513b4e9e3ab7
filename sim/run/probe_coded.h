#pragma once

#include "sim/run/probe.h"

namespace cpscope {

/// The scenario as the probes of queries and gradients run it: without rotary embedding and
/// softcap, so that a logit is what its codes say; sums and dK, dV on the wire in fp32.
Scenario coded_probe_scenario(const Scenario& scenario);
/// The scenario as the probe of positions runs it: forward only, without softcap.
Scenario position_probe_scenario(const Scenario& scenario);

/// Which query row, of which head, stands behind each row of out? Keys carry one of a few classes,
/// and a query asks for the class that is one digit of its own number (token * heads + head): out
/// then is that class. One run a digit. Rows that see no key of a class are not asked for it.
Result<ProbeTally> probe_queries(const CheckedPlan& plan, Executor& executor,
                                 const MaskWitness& witness);

/// Under rotary embedding, a query that is turned back by the distance to one visible key finds
/// just that key, whose number v carries. Three runs: first, middle and last visible key of every
/// row. No rows are asked where head_dim cannot tell neighbours apart in the dtype. Source: Su et
/// al. 2021 (arXiv:2104.09864): logits depend on differences of positions alone.
Result<ProbeTally> probe_positions(const CheckedPlan& plan, Executor& executor,
                                   const MaskWitness& witness);

/// dq, dk and dv of coded inputs, one tally each. With all logits 0, P is 1/n; with d_out = n in
/// the lane that codes the query, dv counts the queries that see a key; with v = +1 and -1 in turn,
/// dS = +-1 minus a known mean, so that dq (k coded) counts keys and dk (q coded) counts queries.
/// Numbers are known up to the dtype's rounding, and a row is wrong that is 1/4 of one key or query
/// off. At most 16 runs for dq and as many for dk, dv: longer batches are sampled.
Result<std::vector<ProbeTally>> probe_gradients(const CheckedPlan& plan, Executor& executor,
                                                const MaskWitness& witness);

}  // namespace cpscope
