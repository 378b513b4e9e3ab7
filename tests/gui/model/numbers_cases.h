#pragma once

#include "gui/model/plan_index.h"
#include "sim/run/grade/case.h"

#include <memory>
#include <string>

namespace cpscope::tests {

/// A shipped scenario, run by the walker and judged by the oracle.
struct NumbersCase {
  gui::SharedPlan plan;
  CaseOutcome outcome;
};

/// A toolbox with the walker, and the oracle as judge.
Toolbox make_numbers_toolbox();
gui::SharedPlan plan_shipped(const std::string& name);
NumbersCase run_shipped(const std::string& name, bool keeps_items = false);
CaseOutcome run_walker(const Scenario& scenario, bool keeps_items = false);

/// Makes one row of out wrong and another one NaN, and grades again. Requires run_shipped's
/// verdict, so it runs the oracle once more.
void plant_faults(NumbersCase& made);

}  // namespace cpscope::tests
