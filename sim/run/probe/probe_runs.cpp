#include "sim/run/probe/probe_runs.h"

#include "sim/run/grade/latent_probe.h"

#include <algorithm>

namespace cpscope {

double count_flops(const Plan& plan) {
  const double qk = plan.scenario.attention.head_dim_qk, v = plan.scenario.attention.head_dim_v;
  double flops = 0;
  for (const ComputeItem& item : plan.forward.computes)
    flops += 2 * (qk + v) * static_cast<double>(item.visible_pairs);
  for (const ComputeItem& item : plan.backward.computes)
    flops += 2 * (3 * qk + 2 * v) * static_cast<double>(item.visible_pairs);
  return flops;
}

Result<RunOutput> ProbeRuns::run(const CheckedPlan& plan, const RunInputs& inputs) {
  const double flops = count_flops(plan.plan());
  RunOptions options;
  if (share_ && flops_ > 0) {
    options.control.share = [&](double share) {
      share_(std::min(1.0, (done_ + flops * share) / flops_));
    };
  }
  const Attention& attention = plan.plan().scenario.attention;
  Result<RunOutput> output = attention.expands_rows()
                                 ? executor_.run(plan, pack_codes(attention, inputs), options)
                                 : executor_.run(plan, inputs, options);
  if (output) unpack_codes(attention, output.value().answer);
  done_ += flops;
  return output;
}

}  // namespace cpscope
