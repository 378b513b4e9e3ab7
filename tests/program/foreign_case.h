#pragma once

#include "sim/run/grade/foreign_grade.h"
#include "sim/run/record/run_record.h"

#include <string>
#include <vector>

namespace cpscope::tests {

/// A scenario that was run once, and graders for what is made of its record.
class ForeignCase {
 public:
  /// `text` is the scenario; the walker's answer is the record to start from, with no word of where
  /// it comes from.
  explicit ForeignCase(const std::string& text);

  const Plan& plan() const { return plan_->plan(); }
  /// A copy of the record, to be spoiled.
  RunRecord record() const { return record_; }
  /// The record in rank order: every tensor of tokens is split into the ranks' local buffers.
  RunRecord in_rank_order() const;
  /// The part of one rank, under the plain names: its rows, or its heads of all queries.
  RunRecord of_rank(int32_t rank) const;

  Result<ForeignGrade> grade(const RunRecord& record, const ForeignChoices& choices = {},
                             const ForeignGradeOptions& options = {}) const;
  Result<ForeignGrade> grade_files(std::vector<NamedRecord> records,
                                   const ForeignChoices& choices = {},
                                   const ForeignGradeOptions& options = {}) const;

 private:
  std::optional<CheckedPlan> plan_;
  RunRecord record_;
};

/// The tensor of a record by its name, to be spoiled.
Tensor& tensor_of(RunRecord& record, const std::string& name);

/// The grade of one tensor; fails the test when there is none.
const TensorGrade& grade_of(const ForeignGrade& graded, const std::string& name);

/// All hints in one text.
std::string hints_of(const ForeignGrade& graded);

}  // namespace cpscope::tests
