#pragma once

#include "gui/app/app_state.h"
#include "gui/model/view.h"
#include "sim/run/grade/case.h"
#include "sim/run/record/run_record.h"
#include "sim/run/toolbox.h"

#include <memory>
#include <optional>
#include <string>

namespace cpscope::gui {

/// Makes a view of a finished case: its errors against the oracle. The case must have kept the
/// exact answer (CaseOptions::keeps_exact); without a grade there are no errors. Moves the items
/// out of it.
RunView make_run_view(CaseOutcome& outcome);

/// Compares run A with run B of the same plan: their differences take the place of the oracle's
/// errors, relative to the earned tolerances of both (sim/run/grade/earned_tolerance.h). Includes
/// the first diverging item where both kept their items. Both need their records.
Result<SharedRun> compare_runs(const RunView& a, const RunView& b, const PlanIndex& plan);

/// Opens a record from any source, checks that it belongs to the plan, and judges it here. Errors:
/// unreadable, of another plan, of a shape that the plan does not have, cancelled.
Result<SharedRun> load_run(const std::string& path, const PlanIndex& plan, const Toolbox& toolbox,
                           TaskControl& control);

/// Adds the comparison of each step with its exact result (gui/app/document/exact_steps.h), as far as the
/// view's record holds items; where it cannot be compared, the view says why. Errors: cancelled.
std::optional<Error> add_steps(RunView& view, const RunInputs& inputs, const PlanIndex& plan,
                               const Toolbox& toolbox, const RunControl& control);

/// Services of the window, using the executors and judges of the program. The toolbox must outlive
/// them; one run at a time.
Runner make_runner(Toolbox& toolbox);
RecordReader make_record_reader(const Toolbox& toolbox);

}  // namespace cpscope::gui
