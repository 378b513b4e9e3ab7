#include "sim/clock/clock.h"

#include "sim/clock/pass_clock.h"

#include <fmt/format.h>

namespace cpscope {

std::optional<Error> refuse_small_cluster(const Scenario& scenario, const Cluster& cluster) {
  const int64_t ranks = scenario.parallel.cp_size;
  if (ranks <= cluster.num_gpus()) return std::nullopt;
  return make_refusal(fmt::format("cluster {} has {} GPUs, the scenario needs {} ranks",
                                  cluster.name, cluster.num_gpus(), ranks),
                      "choose a cluster of more nodes, or fewer ranks", {"parallel.cp_size"});
}

double flops_per_pair(const Attention& attention, Direction direction) {
  const double qk = attention.head_dim_qk, v = attention.head_dim_v;
  return 2 * (direction == Direction::backward ? 3 * qk + 2 * v : qk + v);
}

double flops_of_pass(const Plan& plan, Direction direction) {
  double pairs = 0;
  for (const ComputeItem& item : plan.pass(direction).computes)
    pairs += static_cast<double>(item.visible_pairs);
  return flops_per_pair(plan.scenario.attention, direction) * pairs /
         static_cast<double>(plan.home.size());
}

double tflops_of_pass(const Plan& plan, Direction direction, double total_us) {
  return total_us > 0 ? flops_of_pass(plan, direction) / total_us * 1e-6 : 0.0;
}

Result<Timeline> predict(const Plan& plan, const Cluster& cluster, const ClockOptions& options) {
  if (const auto obstacle = refuse_small_cluster(plan.scenario, cluster)) return *obstacle;
  const Result<const Stack*> stack = find_stack(cluster, options.stack);
  if (!stack) return stack.error();
  const Result<const KernelCost*> kernels = find_kernel_cost(*stack.value(), plan.scenario);
  if (!kernels) return kernels.error();
  Timeline timeline;
  timeline.cluster = cluster.name;
  timeline.stack = stack.value()->name;
  if (options.keeps_events)
    timeline.events.reserve(
        static_cast<size_t>(plan.forward.num_items() + plan.backward.num_items()));
  timeline.forward = PassClock(plan, Direction::forward, cluster, *stack.value(), *kernels.value(),
                               0.0, timeline, options.keeps_events)
                         .run();
  timeline.backward =
      PassClock(plan, Direction::backward, cluster, *stack.value(), *kernels.value(),
                timeline.forward.total_us, timeline, options.keeps_events)
          .run();
  timeline.memory_bytes = high_water_bytes(plan, stack.value()->packs);
  return timeline;
}

}  // namespace cpscope
