// Kernels in a process of their own.

#include "sim/run/kernel_process.h"

#include "sim/plan/planner/planner.h"
#include "tests/support/walker_cases.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

/// Returns rank and step of the item as it sees them.
Result<ItemKernel> make_naming_kernel() {
  return ItemKernel([](ItemCall& call) -> std::optional<Error> {
    call.out = {static_cast<double>(to_index(call.item->rank)),
                static_cast<double>(to_index(call.item->step)),
                static_cast<double>(call.plan->slices_of(*call.item).size())};
    return std::nullopt;
  });
}

/// A plan that is made twice may lie at the same address, with its lists elsewhere.
TEST(KernelProcess, FindsTheItemOfAPlanWhoseListsHaveMoved) {
  Plan plan = make_plan(walker_case({40, 20}, 4)).value();
  const ItemKernel kernel = isolate_kernel("the kernel", make_naming_kernel).value();
  for (int time = 0; time < 2; ++time) {
    for (const ComputeItem& item : plan.forward.computes) {
      ItemCall call;
      call.plan = &plan;
      call.item = &item;
      const std::optional<Error> error = kernel(call);
      ASSERT_FALSE(error) << to_text(*error);
      const std::vector<double> expected = {static_cast<double>(to_index(item.rank)),
                                            static_cast<double>(to_index(item.step)),
                                            static_cast<double>(plan.slices_of(item).size())};
      EXPECT_EQ(call.out, expected);
    }
    std::vector<ComputeItem> moved = plan.forward.computes;
    std::swap(plan.forward.computes, moved);
    std::fill(moved.begin(), moved.end(), ComputeItem{});
  }
}

}  // namespace
}  // namespace cpscope::tests
