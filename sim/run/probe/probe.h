#pragma once

#include "sim/run/executor.h"
#include "sim/run/grade/case.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

/// The first row with a wrong result.
struct ProbeFinding {
  std::string probe;  // count | keys | head | kept | query | position | dq | dk | dv
  int32_t rank = 0, step = 0;
  int64_t token = 0;
  int32_t head = 0;
  double expected = 0.0;
  double seen = 0.0;
  std::string text;  // one sentence
};

/// Result of one kind of probe.
struct ProbeTally {
  std::string probe;
  int64_t rows = 0;   // rows that were tested
  int64_t wrong = 0;  // rows with a wrong number
  std::optional<ProbeFinding> first;
  std::string why_not =
      {};  // why no row was tested, if the executor cannot do what the probe needs
};

/// Exact verdict on which keys every row has seen; no tolerance.
struct ProbeReport {
  int64_t rows = 0;  // padded rows times heads
  int64_t wrong_count_rows = 0;
  int64_t wrong_key_rows = 0;
  int32_t passes = 0;  // runs of the executor
  std::optional<ProbeFinding> first;
  std::vector<ProbeTally> tallies;    // one per probe
  std::vector<std::string> left_out;  // of the scenario: what `run` alone judges

  bool passed() const;
  /// The first finding of one probe.
  std::optional<ProbeFinding> first_of(std::string_view probe) const;
};

/// Runs the plan's forward with q = 0, so that all visible keys have the same weight. exp(lse) is
/// then the number of visible keys (one more with a sink, whose logit is 0). With v = 1 in the
/// element that codes a key's bucket, out times that number is the number of keys seen in each
/// bucket. Buckets hold at most 128 keys, and fewer if partial results are rounded to the dtype on
/// their way, so that the dtype counts them exactly. There is one run for each digit of a
/// key's number. A last run codes the KV head's number. `plan` must be the plan of probe_scenario,
/// whose dtype is bf16 for fp8: 8 bits hold no numbers of keys, and where keys go does not depend
/// on it.
Result<ProbeReport> probe_plan(const CheckedPlan& plan, Executor& executor,
                               const MaskWitness& witness);

/// All probes of a scenario: probe_plan and, each with a plan of its own, the weights that dropout
/// keeps (as probe_plan counts keys: kept ones), the query of each row, rotary positions, and dq, dk, dv (sim/run/probe/probe_coded.h). If an executor has no backward,
/// gradients are not probed, and the tally says why. `share` is that of all runs. Errors: a
/// scenario that is refused, a forward run without an answer.
Result<ProbeReport> run_probes(const Scenario& scenario, Executor& executor,
                               const MaskWitness& witness, const ShareDone& share);
/// The same where `plan_for` plans what the probes need: variants of the scenario.
Result<ProbeReport> run_probes(const Scenario& scenario, const PlanVariant& plan_for,
                               Executor& executor, const MaskWitness& witness,
                               const ShareDone& share);

/// Arithmetic of all probes of a scenario, at most; `plan` is that of probe_scenario.
double estimate_probe_flops(const Scenario& scenario, const Plan& plan, const Executor& executor);

/// The scenario for probe_plan: forward only, sinks at 0, merged in fp32 so that counts stay exact.
Scenario probe_scenario(const Scenario& scenario);

}  // namespace cpscope
