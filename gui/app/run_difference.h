#pragma once

#include "gui/model/view.h"
#include "sim/run/grade/record_diff.h"
#include "sim/run/record/run_record.h"

#include <vector>

namespace cpscope::gui {

/// Adds the differences of the tensors that can be shown to `view`, relative to the earned
/// tolerances of both runs (sim/run/grade/earned_tolerance.h). Returns true if all are within.
bool add_differences(const RunRecord& a, const RunRecord& b, const std::vector<TensorDiff>& diffs,
                     RunView& view);

}  // namespace cpscope::gui
