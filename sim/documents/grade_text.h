#pragma once

#include "sim/run/grade/grade.h"

#include <ostream>

namespace cpscope {

/// The table of a grade: one line a tensor, with its figures, its worst place and both values.
void write_grade_table(const Grade& grade, std::ostream& out);

}  // namespace cpscope
