#pragma once

#include "sim/base/result.h"
#include "sim/scenario/scenario_file.h"

#include <string>
#include <string_view>

namespace cpscope {

/// Loads what a command calls FILE: a scenario, or a plan document, which is proved at once and
/// then has a `plan`. Errors: those of load_scenario and read_plan_document; kind failed with the
/// first broken promise of a plan that is wrong.
Result<LoadedScenario> load_scenario_or_plan(const std::string& path);

/// The same for the text of a plan document; `path` names it in errors.
Result<LoadedScenario> prove_plan_document(std::string_view text, const std::string& path);

}  // namespace cpscope
