#pragma once

#include "gui/model/plan_index.h"
#include "gui/model/step_errors.h"
#include "sim/base/result.h"
#include "sim/base/run_control.h"
#include "sim/run/record/run_record.h"
#include "sim/run/run_inputs.h"
#include "sim/run/toolbox.h"

#include <optional>
#include <string>

namespace cpscope::gui {

/// Limit in bytes: how much of the item results of a run in the window is kept, and how much of a
/// record is compared with exact results.
inline constexpr int64_t kMostItemBytes = int64_t{256} << 20;

/// The message of an error and its hint, as sentences for a picture.
std::string to_sentence(const Error& error);

/// Why the items of a plan are not kept, as a sentence with a remedy; nothing when they are kept.
std::optional<Error> refuse_items(const PlanIndex& plan);

/// Compares what the items of a run wrote with the exact partial results: the walker executes the
/// same plan in fp64, from the same inputs, without any rounding. No budget bounds how far a step
/// may be from exact results, so the first diverging item is searched against a second walk, in the
/// scenario's dtype. `record` holds items and budgets of the plan. Errors: no walker, too large,
/// cancelled, items that do not fit.
Result<StepErrors> compare_with_exact_steps(const RunRecord& record, const RunInputs& inputs,
                                            const PlanIndex& plan, const Toolbox& toolbox,
                                            const RunControl& control);

/// The steps of two runs of one plan, and the first item whose difference is more than the earned
/// tolerances of both runs.
Result<StepErrors> compare_steps(const RunRecord& seen, const RunRecord& expected,
                                 const PlanIndex& plan, const std::string& against);

}  // namespace cpscope::gui
