#pragma once

#include "gui/model/error_field.h"
#include "gui/model/plan_index.h"
#include "gui/model/target.h"
#include "sim/base/result.h"
#include "sim/run/record/run_record.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cpscope::gui {

/// The first item in plan order whose difference is more than the budgets of both sides explain.
struct FirstParting {
  int32_t step = 0;    // index in PlanIndex::steps
  int32_t tensor = 0;  // index in kErrorTensors
  ItemId item;         // compute or finish
  int64_t token = -1;  // token of its worst row; -1 if none is known
  int32_t head = 0;
  std::string text;  // one sentence
};

/// Shows at which step an error enters: compares what the compute items of each step wrote, before
/// anything is merged, with what the same items of another side wrote. Only a step's own results
/// count, so an error shows at the step that made it, and at later ones only if they make one of
/// their own. (Backward steps start from the final out and lse, and inherit their errors.) If
/// several items of a step have results for a row, it shows the largest error. A row that is empty
/// on both sides (zeros, lse -inf) is left out.
struct StepErrors {
  std::string against;  // "the exact partial results"
  // [tensor][step of PlanIndex::steps] no tokens if the step does not write the tensor. Shares are
  // errors divided by the typical row of the tensor's items in all steps. No budgets: those apply
  // to the answer.
  std::array<std::vector<ErrorField>, kErrorTensors.size()> fields;
  std::array<ErrorHistogram, kErrorTensors.size()> histograms;  // [tensor] over all steps
  std::optional<FirstParting> first;
  std::string judged_beside;  // reference in the search for `first`; empty without a search

  /// Null if the step does not write the tensor.
  const ErrorField* find(int32_t tensor, int32_t step) const;
};

/// Index in PlanIndex::steps of a step of a pass; -1 when there is none.
int32_t number_of_step(const PlanIndex& plan, Direction direction, StepId step);

/// Limit of the rows of all steps and tensors together, at ten bytes each.
inline constexpr int64_t kMostStepRows = int64_t{1} << 25;

/// Compares the items of two records of one plan. Errors: a side has no items, other items than the
/// plan has, or items of another shape; more than kMostStepRows.
Result<StepErrors> measure_steps(const RunRecord& seen, const RunRecord& expected,
                                 const PlanIndex& plan, std::string against);

}  // namespace cpscope::gui
