#pragma once

#include "gui/app/app_state.h"
#include "gui/app/inspect.h"
#include "gui/model/axis.h"

#include <cstdint>
#include <string>

namespace cpscope::gui {

// The page of ways: compares every communication type x layout (x a2a_size, x dispatch_chunk) for
// the open scenario on a cluster, as `cpscope compare` does.

/// The cluster of the comparison: the one whose times are predicted; otherwise the smallest one in
/// services.clusters that has enough GPUs and our own stack. Both empty: there is none.
struct ClusterName {
  std::string cluster, stack;
};
ClusterName ways_cluster(const AppState& state);

/// Called once a frame: while the page is open, compares in the background when batch, ranks or
/// cluster changed. A way that was taken from the page needs no new comparison, and the last few
/// comparisons are kept.
void compare_ways_in_background(AppState& state);
/// Waits until the page has its comparison, or the reason why there is none.
void wait_for_ways(AppState& state);

/// The comparison for the open scenario; null while it is being made, or when there is none.
SharedCandidates shown_ways(const AppState& state);
/// Why there is none, as a sentence; empty while it is being made.
std::string ways_refusal(const AppState& state);
/// Progress of the comparison, [0, 1].
double ways_progress(const AppState& state);

/// With this many tokens arithmetic and wires decide which way is fast, not launches.
inline constexpr int64_t kManyTokens = 128 * kKi;

/// Warns when launches take most of the recommended way's time, so that the ways are in another
/// order than those of a large batch; empty otherwise.
std::string warn_of_launches(const AppState& state);
/// Multiplies every length and slot, so that the batch has about kManyTokens, as one edit. Returns
/// false when it has as many, or no lengths of its own.
bool enlarge_batch(AppState& state);

/// Makes a candidate the scenario's own way, as one edit that undo reverts. Returns false for a
/// candidate that is rejected, is already the own one, or does not exist.
bool take_way(AppState& state, int64_t candidate);
/// True if the recommended way can be taken.
bool can_take_best_way(const AppState& state);

/// Writes the table of `cpscope compare --csv` to a file, in the background (AppState::saving).
void start_saving_ways_csv(AppState& state, const std::string& path);

/// Figures of the candidate under the mouse; otherwise of the scenario's own.
Inspection inspect_way(const AppState& state);

}  // namespace cpscope::gui
