#pragma once

#include "gui/model/plan_index.h"
#include "sim/scenario/random_scenario.h"
#include "sim/scenario/scenario_file.h"
#include "tests/support/graded_run.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <gtest/gtest.h>

namespace cpscope::tests {

/// Calls look(index, seed) with the plans of the random scenarios of seeds 1 to `seeds`, without
/// the rejected ones, until a check fails.
template <class Look>
void for_plans_of_seeds(uint64_t seeds, Look look, const RandomSpace& space = {}) {
  uint64_t planned = 0;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    const auto plan = plan_unless_refused(random_scenario(seed, space));
    if (!plan) continue;
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    look(gui::PlanIndex(*plan), seed);
    ++planned;
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(planned, seeds / 3);
}

/// The plan of a scenario file; nothing when it cannot be read or is rejected.
inline std::optional<gui::PlanIndex> plan_file(const std::string& path) {
  auto loaded = load_scenario(path);
  if (!loaded.ok()) return std::nullopt;
  auto plan = plan_unless_refused(loaded.value().scenario);
  if (!plan) return std::nullopt;
  return gui::PlanIndex(std::move(*plan));
}

}  // namespace cpscope::tests
