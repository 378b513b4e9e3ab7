#pragma once

// Private to the grade of a sample: what can be seen in all rows without computing any.

#include "sim/plan/plan.h"
#include "sim/run/judge.h"
#include "sim/run/tensor_grade.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace cpscope {

/// What was seen in the rows of one tensor.
struct RowScan {
  const char* name = "";
  const Tensor* tensor = nullptr;
  bool is_kv = false;
  int64_t rows = 0;                 // tokens times heads
  int64_t nan = 0;                  // values
  int64_t infinite = 0;             // values, where the row may hold something
  int64_t not_empty = 0;            // rows that hold something where nothing belongs
  std::optional<WorstPlace> first;  // of these
  std::vector<int64_t> suspects;    // tokens of rows that look as if nobody wrote them
};

/// The tensors by token that `seen` has, in the order of a grade.
std::vector<RowScan> scan_rows(const Plan& plan, const RunInputs& inputs, const Answer& seen,
                               const LiveRows& live);

}  // namespace cpscope
