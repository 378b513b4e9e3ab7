#include "reference/plan_walker.h"

#include "reference/plan_walk.h"
#include "sim/base/machine_memory.h"

#include <new>

#include <fmt/format.h>

namespace cpscope::reference {
namespace {

class PlanWalker : public Executor {
 public:
  std::string name() const override { return "cpu"; }

  int64_t memory_bytes(const CheckedPlan& plan) const override {
    return reference::memory_bytes(plan.plan(),
                                   plan.plan().scenario.numerics.dtype == Dtype::fp64 ? 8 : 4);
  }

  Result<RunOutput> run(const CheckedPlan& checked, const RunInputs& inputs,
                        const RunOptions& options) override {
    const Plan& plan = checked.plan();
    const bool in_order = !checked.admitted_because().empty();
    try {
      if (plan.scenario.numerics.dtype == Dtype::fp64)
        return Walk<double>(plan, inputs, options, in_order).run();
      return Walk<float>(plan, inputs, options, in_order).run();
    } catch (const std::bad_alloc&) {
      return make_error(
          ErrorKind::unavailable,
          fmt::format(
              "the plan needs {:.1f} GiB on executor cpu, more than this machine can allocate",
              gibibytes(memory_bytes(checked))),
          "use fewer tokens or ranks");
    }
  }
};

}  // namespace

std::unique_ptr<Executor> make_plan_walker() { return std::make_unique<PlanWalker>(); }

}  // namespace cpscope::reference
