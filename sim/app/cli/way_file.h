#pragma once

#include "sim/base/result.h"
#include "sim/clock/candidates.h"
#include "sim/scenario/scenario_file.h"

#include <string>

namespace cpscope {

/// Writes the scenario split as the best candidate says to `path`, and an order that a search has
/// found to the same name with .order.json. Names of other files are kept valid from the new
/// folder. Errors: refused (there is no best candidate), a file that cannot be written or would
/// replace one that the scenario names.
Result<size_t> write_best_way(const Candidates& comparison, const LoadedScenario& loaded,
                              const std::string& path);

}  // namespace cpscope
