#pragma once

#include "gui/model/error_field.h"
#include "gui/model/plan_index.h"
#include "gui/model/target.h"
#include "sim/base/result.h"
#include "sim/run/run_record.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cpscope::gui {

/// The first item in plan order that is further off than the budgets of both sides explain.
struct FirstParting {
  int32_t step = 0;    // of PlanIndex::steps
  int32_t tensor = 0;  // in kErrorTensors
  ItemTarget item;     // compute or finish
  int64_t token = -1;  // of its worst row; -1 where none is known
  int32_t head = 0;
  std::string text;  // sentence
};

/// At which step an error enters: what the compute items of each step wrote, before anything is
/// merged, beside what the same items of another side wrote. A step's own results alone, so that an
/// error shows at the step that made it and at later ones only where they make one of their own.
/// (Backward steps start from the final out and lse, and inherit what is wrong there.) A row that
/// several items of a step have results for shows the furthest one. A row in which both sides have
/// nothing (zeros, lse -inf) takes no part.
struct StepErrors {
  std::string against;  // "the exact partial results"
  // [tensor][step of PlanIndex::steps] no tokens where the step writes none of the tensor. Shares
  // are errors over the typical row of the tensor's items in all steps. No budgets: those hold for
  // the answer.
  std::array<std::vector<ErrorField>, kErrorTensors.size()> fields;
  std::array<ErrorHistogram, kErrorTensors.size()> histograms;  // [tensor] over all steps
  std::optional<FirstParting> first;
  std::string judged_beside;  // beside what `first` was looked for; empty when nobody looked

  /// Null where the step writes none of the tensor.
  const ErrorField* find(int32_t tensor, int32_t step) const;
};

/// Number in PlanIndex::steps of a step of a pass; -1 when there is none.
int32_t number_of_step(const PlanIndex& plan, bool is_backward, StepId step);

/// Most rows of all steps and tensors together, at ten bytes each.
inline constexpr int64_t kMostStepRows = int64_t{1} << 25;

/// Compares the items of two records of one plan. Errors: a side holds no items, other ones than
/// the plan has, or of another shape; more than kMostStepRows.
Result<StepErrors> measure_steps(const RunRecord& seen, const RunRecord& expected,
                                 const PlanIndex& plan, std::string against);

}  // namespace cpscope::gui
