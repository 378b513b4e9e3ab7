#include "sim/run/grade/work_estimate.h"

#include "sim/base/parallel.h"

#include <algorithm>

namespace cpscope {
namespace {

// FLOP per second and core, with `cpscope run` of 4096 tokens on two cores of an AMD EPYC that had
// other work too: 25 to 50 for the walker, half as much in fp64, 12 to 25 for the oracle.
constexpr double kWalkerRate = 30e9;
constexpr double kWalkerRate64 = 15e9;
constexpr double kOracleRate = 16e9;

WorkEstimate estimate_at(double flops, double rate) {
  const int32_t cores = default_thread_count();
  return {flops, flops / rate / cores, cores};
}

}  // namespace

double flops_of_run(const Scenario& scenario, const PlanSummary& summary) {
  const double width = scenario.attention.head_dim_qk + scenario.attention.head_dim_v;
  return static_cast<double>(summary.visible_pairs) * width *
         (scenario.numerics.backward ? 7.0 : 2.0);
}

WorkEstimate& WorkEstimate::operator+=(const WorkEstimate& other) {
  flops += other.flops;
  seconds += other.seconds;
  cores = std::max(cores, other.cores);
  return *this;
}

WorkEstimate estimate_executor(double flops, Dtype dtype, std::string_view executor) {
  if (executor == "cuda" || executor == "nccl") return {};
  return estimate_at(flops, dtype == Dtype::fp64 ? kWalkerRate64 : kWalkerRate);
}

WorkEstimate estimate_run(const Scenario& scenario, const PlanSummary& summary,
                          std::string_view executor) {
  return estimate_executor(flops_of_run(scenario, summary), scenario.numerics.dtype, executor);
}

WorkEstimate estimate_judge(const Scenario& scenario, const PlanSummary& summary,
                            int64_t sample_rows) {
  double share = 1;
  if (sample_rows > 0) {
    int64_t tokens = 0;
    for (const int64_t length : scenario.batch.lengths) tokens += length;
    // Queries are judged with all their keys, and as many keys with all their queries.
    share = std::min(1.0, 2.0 * static_cast<double>(sample_rows) /
                              static_cast<double>(std::max<int64_t>(1, tokens)));
  }
  return estimate_at(2 * share * flops_of_run(scenario, summary), kOracleRate);
}

}  // namespace cpscope
