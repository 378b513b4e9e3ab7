#pragma once

#include "sim/run/probe/probe.h"
#include "sim/run/probe/probe_runs.h"

namespace cpscope {

/// The scenario for the probes of queries and gradients: without rotary embedding and softcap, so
/// that a logit is exactly what its codes give; sums and dK, dV on the wire in fp32.
Scenario coded_probe_scenario(const Scenario& scenario);
/// The scenario for the probe of positions: forward only, without softcap.
Scenario position_probe_scenario(const Scenario& scenario);

/// Tests which query row, of which head, each row of out belongs to. Keys code one of a few
/// classes, and a query selects the class that is one digit of its own number (token * heads +
/// head): out is then that class. One run per digit. Rows that see no key of a class are not tested
/// for it.
Result<ProbeTally> probe_queries(const CheckedPlan& plan, ProbeRuns& runs,
                                 const MaskWitness& witness);

/// Its number of runs, at most.
int64_t count_query_runs(const Plan& plan);

/// Under rotary embedding, a query that is rotated back by the distance to one visible key selects
/// just that key, whose number v codes. Three runs: first, middle and last visible key of every
/// row. No rows are tested if head_dim is too small to separate neighbours in the dtype. Source: Su
/// et al. 2021 (arXiv:2104.09864): logits depend on differences of positions alone.
Result<ProbeTally> probe_positions(const CheckedPlan& plan, ProbeRuns& runs,
                                   const MaskWitness& witness);

inline constexpr int64_t kPositionRuns = 3;  // of probe_positions, at most

/// dq, dk and dv of coded inputs, one tally each. With all logits 0, P is 1/n. With d_out = n in
/// the element that codes the query, dv counts the queries that see a key. With v alternating
/// between +1 and -1, dS = +-1 minus a known mean, so that dq (k coded) counts keys and dk (q
/// coded) counts queries. The numbers are exact up to the dtype's rounding; a row is wrong if it is
/// off by 1/4 of one key or query. At most 16 runs for dq and as many for dk, dv: longer batches
/// are sampled. If v is a part of k, q is coded in elements behind those that d_out codes: dk then
/// counts both, each in its own elements.
Result<std::vector<ProbeTally>> probe_gradients(const CheckedPlan& plan, ProbeRuns& runs,
                                                const MaskWitness& witness);

/// Its number of runs, at most.
int64_t count_gradient_runs(const Plan& plan);

}  // namespace cpscope
