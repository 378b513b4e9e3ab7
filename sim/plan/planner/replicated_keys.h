#pragma once

#include "sim/plan/planner/planner_parts.h"

#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace cpscope {

/// The keys that every rank holds (kv_replicated), and the others of each rank.
struct ReplicatedKeys {
  RunListId tokens = kNoTokens;           // by ascending token id; kNoTokens if there are none
  IdVector<RankId, RunListId> owned;      // rows of `tokens` that the rank owns
  IdVector<RankId, RunListId> home_rows;  // the same rows in its home buffers
  IdVector<RankId, RunListId> other_rows, other_tokens;  // the rest of its home buffers

  bool are_there() const { return tokens != kNoTokens; }
};

/// Finds them, and gives every rank a buffer that holds them.
ReplicatedKeys add_replicated_keys(PlanBuilder& builder);

/// Partial results of queries with these keys, forward and backward. Results with the keys of other
/// steps are merged after them.
class ReplicaWork {
 public:
  /// `seats`: those of the plan's first step. Errors: too many slices.
  std::optional<Error> find(PlanBuilder& builder, const ReplicatedKeys& keys,
                            const std::vector<Seat>& seats);

  /// One compute and one merge for each seat, in a step; counts merges by accumulator.
  void add_forward(PlanBuilder& builder, const std::vector<Seat>& seats, int32_t step,
                   std::map<BufferId, int32_t>& merges) const;
  void add_backward(PlanBuilder& builder, const std::vector<Seat>& seats, int32_t step,
                    std::map<BufferId, int32_t>& merges);
  /// Sends every rank's dK and dV of these keys to their owners, whose sums have begun and are not
  /// finished.
  void add_shares_home(PlanBuilder& builder, int32_t step) const;

 private:
  const SliceRange& range_of(const Seat& seat) const { return ranges_.at(seat.rank); }

  const ReplicatedKeys* keys_ = nullptr;
  std::map<RankId, SliceRange> ranges_;
  std::map<std::pair<RankId, int32_t>, BufferId> shares_;  // [rank, first KV head]
};

}  // namespace cpscope
