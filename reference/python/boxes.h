#pragma once

#include "sim/clock/candidates.h"
#include "sim/clock/crossover.h"
#include "sim/plan/check/plan_check.h"
#include "sim/run/record/foreign_record.h"
#include "sim/scenario/scenario_file.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nanobind/nanobind.h>

namespace cpscope::python {

/// The scenario behind a Python object; never changed once made.
struct ScenarioBox {
  LoadedScenario loaded;

  const Scenario& scenario() const { return loaded.scenario; }
};

/// A scenario with its layout, for `layout` and for readers of foreign tensors, which need no full
/// plan.
struct LayoutBox {
  Plan plan;
};

struct PlanBox {
  CheckedPlan checked;
};

/// All ways to split a batch on a cluster.
struct ComparisonBox {
  Candidates candidates;
  Scenario scenario;
  std::optional<Crossover> crossover = {};
};

/// The layout of a scenario that no rule refuses.
Result<LayoutBox> lay_out(const ScenarioBox& box);

/// What the caller says about the order and dimensions of tensors; None means that it follows from
/// their shapes. Throws an InputError for an unknown word. Needs the GIL.
ForeignChoices choices_of(const std::optional<std::string>& order,
                          const std::optional<std::string>& format,
                          const std::optional<std::string>& lse_layout);

void bind_scenario(nanobind::module_& module);
void bind_judge(nanobind::module_& module);
void bind_runs(nanobind::module_& module);
void bind_schedules(nanobind::module_& module);
void bind_pictures(nanobind::module_& module);

}  // namespace cpscope::python
