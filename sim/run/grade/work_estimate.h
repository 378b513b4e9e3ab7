#pragma once

#include "sim/plan/plan_summary.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <string_view>

namespace cpscope {

/// The arithmetic that this machine's processor has before it, and about how long it takes.
struct WorkEstimate {
  double flops = 0;
  double seconds = 0;
  int32_t cores = 1;

  WorkEstimate& operator+=(const WorkEstimate& other);
};

/// Arithmetic of one run of all visible pairs: two products forward, five backward.
double flops_of_run(const Scenario& scenario, const PlanSummary& summary);

/// Such a run on an executor; nothing for one that runs on GPUs.
WorkEstimate estimate_run(const Scenario& scenario, const PlanSummary& summary,
                          std::string_view executor);

/// Both answers of the oracle: of all rows, or of about this many query rows and keys.
WorkEstimate estimate_judge(const Scenario& scenario, const PlanSummary& summary,
                            int64_t sample_rows);

/// Arithmetic of any kind that an executor does; nothing for one that runs on GPUs.
WorkEstimate estimate_executor(double flops, Dtype dtype, std::string_view executor);

}  // namespace cpscope
