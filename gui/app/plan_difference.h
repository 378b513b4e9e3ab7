#pragma once

#include "gui/app/app_state.h"
#include "gui/model/plan_index.h"
#include "gui/model/view.h"
#include "sim/base/result.h"
#include "sim/run/record/run_record.h"

#include <optional>
#include <string>

namespace cpscope::gui {

/// A run and the plan that it executed.
struct PlannedRun {
  const RunView* run = nullptr;
  const PlanIndex* plan = nullptr;
};

/// Why the answers of two plans cannot be compared: they answer different questions. Nothing when
/// both compute the same attention of sequences of the same lengths.
std::optional<Error> refuse_difference(const Plan& own, const Plan& other);

/// "p2p, dual_chunk".
std::string describe_split(const Scenario& scenario);

/// The tensors of `record` in the slots of another plan of the same batch: valid rows by sequence
/// and position, padding as in `own`, whose padding therefore does not differ. Without items.
RunRecord align_record(const RunRecord& record, const Plan& from, const RunRecord& own,
                       const Plan& to);

/// Compares the runs of two plans of one batch, a ring with an all-to-all for instance: like
/// compare_runs(), in the token order of `own`, and with the distance on every rank of either plan
/// and in every head. Errors: different batches, different inputs, a run without a record.
Result<SharedRun> compare_across_plans(const PlannedRun& own, const PlannedRun& other);

}  // namespace cpscope::gui
