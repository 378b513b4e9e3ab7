#pragma once

// Private to the grade of a sample: what can be checked in all rows without computing any.

#include "sim/plan/batch_slots.h"
#include "sim/plan/plan.h"
#include "sim/run/grade/tensor_grade.h"
#include "sim/run/judge.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace cpscope {

/// Findings in the rows of one tensor.
struct RowScan {
  const char* name = "";
  const Tensor* tensor = nullptr;
  Side side = Side::q;
  int64_t rows = 0;                 // tokens times heads
  int64_t nan = 0;                  // values
  int64_t infinite = 0;             // values, in rows that may be non-zero
  int64_t not_empty = 0;            // rows that must be empty and are not
  std::optional<WorstPlace> first;  // the first of these
  std::vector<int64_t> suspects;    // tokens of rows that look unwritten
};

/// Scans the tensors by token that `seen` has, in the order of a grade.
std::vector<RowScan> scan_rows(const Plan& plan, const RunInputs& inputs, const Answer& seen,
                               const LiveRows& live);

}  // namespace cpscope
