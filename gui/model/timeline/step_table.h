#pragma once

#include "gui/model/plan_index.h"
#include "sim/base/id_vector.h"

#include <cstdint>
#include <map>
#include <vector>

namespace cpscope::gui {

/// Stages of one step that may run at the same time, and the work of each rank in them. A transfer
/// and the compute that reads its result are two phases.
struct PhaseWork {
  int32_t first_stage = 0, end_stage = 0;                // indices in PlanIndex::stages
  bool has_compute = false, has_transfer = false;        //
  IdVector<RankId, int64_t> pairs;                       // (query, key, head) triples
  IdVector<RankId, int64_t> sent, received;              // bytes on the wire
  IdVector<RankId, int64_t> rows_moved;                  // by transfers that stay on the rank
  IdVector<RankId, int32_t> merges, reorders, finishes;  // items
  IdVector<RankId, int64_t> compute_item, sent_item, received_item;  // first one, or -1
  int64_t most_pairs = 0, most_sent = 0, most_received = 0;          // maximum over the ranks
};

/// All phases of a step, in order.
using StepWork = std::vector<PhaseWork>;

StepWork measure_step(const PlanIndex& index, int32_t step);

/// The work of each rank in each step of both passes, with prefix sums: any rectangle of ranks x
/// steps is summed in O(1). Made once per plan: O(compute items + ranks * steps), 8 bytes a cell.
class StepTable {
 public:
  explicit StepTable(const PlanIndex& index);

  int32_t num_ranks() const { return num_ranks_; }
  int32_t num_steps() const { return num_steps_; }
  /// (query, key, head) triples of a rank in a step of PlanIndex::steps.
  int64_t pairs(int32_t step, int32_t rank) const { return sum(step, step + 1, rank, rank + 1); }
  int64_t sum(int32_t first_step, int32_t end_step, int32_t first_rank, int32_t end_rank) const {
    return area_[at(end_step, end_rank)] - area_[at(first_step, end_rank)] -
           area_[at(end_step, first_rank)] + area_[at(first_step, first_rank)];
  }
  /// Triples of the busiest rank of a step.
  int64_t most_pairs(int32_t step) const { return most_[static_cast<size_t>(step)]; }
  /// The busiest rank of a step, the lowest if there are several; -1 if all have the same work.
  int32_t busiest(int32_t step) const { return busiest_[static_cast<size_t>(step)]; }
  /// True if a round of cp_sizes begins with this step of a pass.
  bool begins_round(int32_t step) const {
    return !round_begins_.empty() && round_begins_[static_cast<size_t>(step)];
  }
  /// Share of the time in which ranks compute, if every step waits for its busiest rank. 0 if no
  /// rank computes.
  double busy_share(int32_t first_step, int32_t end_step, int32_t first_rank,
                    int32_t end_rank) const;
  /// Cost of the steps of a pass if each waits for its busiest rank, divided by the cost if work
  /// were spread evenly. 1 if nothing is computed.
  double critical_path_over_ideal(Direction direction) const;

  /// A step's phases, cached. Not thread-safe.
  const StepWork& work(const PlanIndex& index, int32_t step) const;

 private:
  size_t at(int32_t step, int32_t rank) const {
    return static_cast<size_t>(rank) * static_cast<size_t>(num_steps_ + 1) +
           static_cast<size_t>(step);
  }

  int32_t num_ranks_ = 0, num_steps_ = 0, num_forward_ = 0;
  std::vector<int64_t> area_;  // [rank + 1][step + 1] triples of lower ranks in earlier steps
  std::vector<int64_t> most_;  // [step]
  std::vector<int64_t> most_before_;  // [step + 1] sums of most_
  std::vector<int32_t> busiest_;      // [step]
  std::vector<bool> round_begins_;    // [step]; empty without rounds
  mutable std::map<int32_t, StepWork> works_;
};

}  // namespace cpscope::gui
