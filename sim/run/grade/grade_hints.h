#pragma once

#include "sim/plan/plan.h"
#include "sim/run/grade/grade.h"

#include <string>
#include <vector>

namespace cpscope {

/// Names the well-known mistakes that the errors of failed tensors look like: all zero, undefined
/// padding rows, +inf for rows without keys, a wrong factor (lse to base 2, a missing scale), rank
/// order read as packed order, rows of other ranks, exchanged heads. One sentence each; nothing for
/// other errors. `seen` in packed order.
std::vector<std::string> explain_grade(const Plan& plan, const Answer& seen, const Answer& exact,
                                       const Grade& grade);

}  // namespace cpscope
