#pragma once

#include "gui/app/app_state.h"
#include "gui/app/inspect.h"

#include <cstdint>
#include <string>

namespace cpscope::gui {

// The page of ways: every communication type x layout (x a2a_size, x dispatch_chunk) for the
// scenario that is open, side by side on a cluster, as `cpscope compare` has them.

/// What the ways are compared on: the cluster whose times are predicted, else the smallest of
/// services.clusters that has enough GPUs and our own stack. Both empty: there is none.
struct ClusterName {
  std::string cluster, stack;
};
ClusterName ways_cluster(const AppState& state);

/// Once a frame: while the page is open, compares in the background where batch, ranks or cluster
/// are others. A way that was taken from the page needs nothing anew, and the last few comparisons
/// are kept.
void compare_ways_in_background(AppState& state);
/// Until the page has what it waits for, or why it has nothing.
void wait_for_ways(AppState& state);

/// The comparison of the scenario that is open; null while it is made, or when there is none.
SharedCandidates shown_ways(const AppState& state);
/// Why there is none: a sentence; empty while it is made.
std::string ways_refusal(const AppState& state);
/// How far the comparison is, [0, 1].
double ways_progress(const AppState& state);

/// Makes a candidate the scenario's own way: one edit, which undo takes back. False for one that is
/// refused, is the own already, or does not exist.
bool take_way(AppState& state, int64_t candidate);
/// Takes the one that is recommended.
bool can_take_best_way(const AppState& state);

/// The table of `cpscope compare --csv` into a file, in the background (AppState::saving).
void start_saving_ways_csv(AppState& state, const std::string& path);

/// Figures of the candidate that is pointed at, else of the scenario's own.
Inspection inspect_way(const AppState& state);

}  // namespace cpscope::gui
