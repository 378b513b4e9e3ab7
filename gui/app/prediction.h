#pragma once

#include "gui/app/app_state.h"
#include "sim/clock/cluster.h"

#include <string>
#include <string_view>
#include <vector>

namespace cpscope::gui {

/// A cluster and one of its stacks, as a menu offers them.
struct ClusterChoice {
  std::string cluster, stack;
  std::string title;  // "h200x8, cpscope"
};

/// The cluster of services.clusters that has this name; null when there is none.
const Cluster* find_cluster(const AppState& state, std::string_view name);

/// What services.clusters offers, in order.
std::vector<ClusterChoice> list_choices(const AppState& state);

/// Wants the times of the present plan on a cluster of services.clusters, now and after every edit;
/// "" wants none. An empty stack is the cluster's first. The timeline then shows time.
void choose_cluster(AppState& state, std::string_view cluster, std::string_view stack);

/// The next choice in order, none after the last.
void choose_next_cluster(AppState& state);

/// Once a frame: predicts in the background where the plan or the choice is another.
void predict_in_background(AppState& state);

/// Until the times that are wanted are there, or why there are none.
void wait_for_prediction(AppState& state);

/// The plan's items with their predicted times, as a run that was never made: `is_simulated`, no
/// errors. Errors: as predict() has them, cancelled.
Result<SharedRun> predict_run(const Plan& plan, const Cluster& cluster, const std::string& stack);

/// What a timeline of the plan shows: the predicted times first, if there are any, and beside them
/// the first run with a clock; else runs A and B.
struct TimedRuns {
  SharedRun a, b;
};
TimedRuns timed_runs(const AppState& state, const SharedPlan& plan);

/// "Times are predicted for Eight H200 of one host, stack cpscope; nothing was measured."; empty
/// where none are shown.
std::string describe_prediction(const AppState& state);

}  // namespace cpscope::gui
