#include "reference/faulty_walker.h"

#include "reference/faulty_seam.h"

#include <new>

namespace cpscope::reference {
namespace {

/// The walker with the seam of the fault gallery, one item after another on one thread.
class WatchedPlanWalker : public Executor {
 public:
  explicit WatchedPlanWalker(const WatchedWalk& setup) : setup_(setup) {}

  std::string name() const override { return "cpu, watched"; }

  int64_t memory_bytes(const CheckedPlan& plan) const override {
    return reference::memory_bytes(plan.plan(), 8);
  }

  Result<RunOutput> run(const CheckedPlan& checked, const RunInputs& inputs,
                        const RunOptions& options) override {
    const Plan& plan = checked.plan();
    RunOptions serial = options;
    serial.threads = 1;
    if (setup_.trace != nullptr) *setup_.trace = {};
    try {
      if (plan.scenario.numerics.dtype == Dtype::fp64)
        return Walk<double, FaultySeam<double>>(plan, inputs, serial, true, {&setup_}).run();
      return Walk<float, FaultySeam<float>>(plan, inputs, serial, true, {&setup_}).run();
    } catch (const std::bad_alloc&) {
      return make_error(ErrorKind::unavailable, "the watched walker has not enough memory",
                        "use fewer tokens or ranks");
    }
  }

 private:
  WatchedWalk setup_;
};

}  // namespace

std::unique_ptr<Executor> make_watched_walker(const WatchedWalk& setup) {
  return std::make_unique<WatchedPlanWalker>(setup);
}

}  // namespace cpscope::reference
