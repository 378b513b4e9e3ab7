#pragma once

#include "gui/model/plan_index.h"
#include "sim/run/case.h"

#include <memory>
#include <string>

namespace cpscope::tests {

/// A shipped scenario that the walker has run and the oracle has judged.
struct NumbersCase {
  gui::SharedPlan plan;
  CaseOutcome outcome;
};

/// The walker, and the oracle as judge.
Toolbox make_numbers_toolbox();
gui::SharedPlan plan_shipped(const std::string& name);
NumbersCase run_shipped(const std::string& name, bool keeps_items = false);
CaseOutcome run_walker(const Scenario& scenario, bool keeps_items = false);

/// One row of out is wrong and another one has a NaN; graded again. Needs run_shipped's verdict, so
/// the oracle is asked once more.
void plant_faults(NumbersCase& made);

}  // namespace cpscope::tests
