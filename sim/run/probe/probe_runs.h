#pragma once

#include "sim/run/executor.h"

#include <utility>

namespace cpscope {

/// Arithmetic of the plan's compute items, in both passes.
double count_flops(const Plan& plan);

/// The executor of all probes, and what their runs have done together.
class ProbeRuns {
 public:
  /// `flops`: of all runs, at most.
  ProbeRuns(Executor& executor, double flops, ShareDone share)
      : executor_(executor), flops_(flops), share_(std::move(share)) {}

  const Executor& executor() const { return executor_; }
  Result<RunOutput> run(const CheckedPlan& plan, const RunInputs& inputs);

 private:
  Executor& executor_;
  const double flops_;
  const ShareDone share_;
  double done_ = 0;  // FLOP of the runs that have ended
};

}  // namespace cpscope
