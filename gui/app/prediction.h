#pragma once

#include "gui/app/app_state.h"
#include "sim/clock/cluster.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope::gui {

/// A cluster and one of its stacks, as one entry of a menu.
struct ClusterChoice {
  std::string cluster, stack;
  std::string title;  // "h200x8, cpscope"
};

/// The cluster in services.clusters with this name; null when there is none.
const Cluster* find_cluster(const AppState& state, std::string_view name);

/// All choices in services.clusters, in order.
std::vector<ClusterChoice> list_choices(const AppState& state);

/// Requests predicted times of the plan on a cluster of services.clusters, now and after every
/// edit; "" requests none. An empty stack means the cluster's first one. The timeline then shows
/// time.
void choose_cluster(AppState& state, std::string_view cluster, std::string_view stack);

/// Selects the next choice in order; after the last one, selects none.
void choose_next_cluster(AppState& state);

/// Called once a frame: starts a prediction in the background when the plan or the choice changed,
/// and for every pinned plan.
void predict_in_background(AppState& state);

/// Waits until the requested times are ready, or the reason why there are none.
void wait_for_prediction(AppState& state);

/// The plan's items with their predicted times, in the form of a run: `is_simulated`, no errors.
/// Errors: those of predict(), cancelled.
Result<SharedRun> predict_run(const Plan& plan, const Cluster& cluster, const std::string& stack);

/// Predicts the state's plan on a cluster and shows the times. Errors: those of predict_run, an
/// unknown stack.
std::optional<Error> show_prediction(AppState& state, Cluster cluster, const std::string& stack);

/// The plan's items that traces of other software show (sim/clock/trace_match.h), in the form of a
/// run without errors. `texts`: FILE or RANK=FILE. Errors: those of match_traces.
Result<SharedRun> load_traces(const std::vector<std::string>& texts, std::optional<int64_t> layer,
                              const Plan& plan);

/// The runs that a timeline of the plan shows: predicted times first, if there are any, together
/// with the first run that has a clock; otherwise runs A and B, or B alone if A has no clock and B
/// has one.
struct TimedRuns {
  SharedRun a, b;
};
TimedRuns timed_runs(const AppState& state, const SharedPlan& plan);

/// The predicted times of the shown plan or of a pinned one; null while there are none.
SharedRun predicted_run(const AppState& state, const SharedPlan& plan);

/// "Times are predicted for Eight H200 of one host, stack cpscope; nothing was measured."; empty
/// when no predicted times are shown.
std::string describe_prediction(const AppState& state);

}  // namespace cpscope::gui
