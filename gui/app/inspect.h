#pragma once

#include "gui/app/app_state.h"
#include "gui/app/document/background.h"
#include "gui/app/caption/caption.h"

#include <string>
#include <vector>

namespace cpscope::gui {

/// One line of the inspector. Words that name a part of the plan carry its target.
struct InspectionRow {
  std::string label;  // "Visible pairs"; empty where the value needs no label
  Spans value;

  friend bool operator==(const InspectionRow&, const InspectionRow&) = default;
};

/// Everything about one target as text.
struct Inspection {
  std::string heading;  // "Compute item forward 12"
  std::vector<InspectionRow> rows;

  static constexpr size_t kMostRows = 40;
  friend bool operator==(const Inspection&, const Inspection&) = default;
};

/// Describes a target from the plan and its runs. Runs may be null.
///   tokens: count, valid ones, sequences and positions, owners and local rows, pairs, which ranks
///           compute;
///   pairs:  visible ones by the mask, owners, which ranks compute them;
///   rank:   its tokens, its share of the work, bytes and links, its items;
///   link:   bytes by content, transfers, steps;
///   item:   place in the schedule, buffers with their writers and readers, slices, pairs, tiles,
///           FLOPs, bytes, time;
///   step:   stages, work of the busiest rank, bytes, neighbours;
///   row:    value, error and budget of each run, the items that made it.
/// A target that the plan does not have is reported as absent. May look at all items of the plan
/// (some ms for the largest), so keep the answer: InspectionMemo.
Inspection inspect(const PlanIndex& plan, const RunView* run_a, const RunView* run_b,
                   const Target& target);

/// Like the function above, for the window, which may have no plan yet.
Inspection inspect(const AppState& state, const Target& target);

/// Keeps the last answer while its inputs do not change.
class InspectionMemo {
 public:
  /// With in_background, the answer about a large plan comes later; until then the last one stays.
  const Inspection& inspect(const AppState& state, const Target& target,
                            bool in_background = false);
  /// True while an answer is being computed.
  bool is_waiting() const { return task_.is_running(); }

 private:
  struct Key {
    Target target;
    SharedPlan plan;
    SharedRun run_a, run_b;
    bool is_planning = false, is_refused = false;

    friend bool operator==(const Key&, const Key&) = default;
  };
  Key key_;
  bool is_known_ = false;
  Task<Inspection> task_;
  Inspection last_;
};

}  // namespace cpscope::gui
