#pragma once

#include "sim/plan/plan.h"
#include "sim/run/record/run_record.h"

#include <optional>
#include <string>

namespace cpscope {

/// Why a record cannot be shown with a plan; nothing when it can. For a record of another plan both
/// hashes are named; its scenario is in RunRecord::scenario_text.
std::optional<Error> check_record(const RunRecord& record, const Plan& plan,
                                  const std::string& path);

/// Why its events are not those of the plan's items; nothing when they are, or when there are none.
std::optional<Error> check_events(const RunRecord& record, const Plan& plan,
                                  const std::string& path);

}  // namespace cpscope
