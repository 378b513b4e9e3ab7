#pragma once

#include "sim/plan/plan.h"
#include "sim/run/grade/foreign_grade.h"

#include <cstdint>
#include <string>
#include <vector>

namespace cpscope {

/// All judged rows whose error exceeds what it may be, one entry of each column but names per row:
/// by tensor in the order of the grade, then by token and head.
struct WrongRowTable {
  std::vector<std::string> names;  // of tensors with wrong rows: out, lse, dq, dk, dv
  std::vector<int64_t> tensor;     // index in names
  std::vector<int64_t> rank;       // owner of the row
  std::vector<int64_t> token;      // packed padded id
  std::vector<int64_t> sequence;   // -1: padding
  std::vector<int64_t> position;   // in the sequence; -1: padding
  std::vector<int64_t> head;
  std::vector<double> error;   // |seen - exact|2 of the row; infinite with a NaN
  std::vector<double> budget;  // allowed |seen - exact|2
};

/// The grade must have been made with keeps_exact. A tensor may fail as a whole, or in a head,
/// while no row alone does.
WrongRowTable list_wrong_rows(const Plan& plan, const ForeignGrade& graded);

}  // namespace cpscope
