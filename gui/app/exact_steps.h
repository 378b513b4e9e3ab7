#pragma once

#include "gui/model/plan_index.h"
#include "gui/model/step_errors.h"
#include "sim/base/result.h"
#include "sim/run/run_control.h"
#include "sim/run/run_inputs.h"
#include "sim/run/run_record.h"
#include "sim/run/toolbox.h"

#include <optional>
#include <string>

namespace cpscope::gui {

/// As much of the results of items, in bytes, is kept of a run made in the window, and as much of a
/// record is compared with exact ones.
inline constexpr int64_t kMostItemBytes = int64_t{256} << 20;

/// What an error says first, and its hint, as sentences for a picture.
std::string to_sentence(const Error& error);

/// Why the items of a plan are not kept, as a sentence with what to do; nothing when they are.
std::optional<Error> refuse_items(const PlanIndex& plan);

/// What the items of a run wrote beside the exact partial results: the walker carries out the same
/// plan in fp64, from the same inputs, without any rounding. No budget says how far a step may be
/// from those, so the first item that parts is looked for beside a second walk, in the scenario's
/// dtype. `record` holds items and budgets of the plan. Errors: no walker, too large, cancelled,
/// items that do not fit.
Result<StepErrors> compare_with_exact_steps(const RunRecord& record, const RunInputs& inputs,
                                            const PlanIndex& plan, const Toolbox& toolbox,
                                            const RunControl& control);

/// The steps of two runs of one plan, and the first item that is further apart than both have
/// earned.
Result<StepErrors> compare_steps(const RunRecord& seen, const RunRecord& expected,
                                 const PlanIndex& plan, const std::string& against);

}  // namespace cpscope::gui
