#pragma once

#include "sim/base/id_vector.h"
#include "sim/base/ids.h"
#include "sim/plan/plan.h"

#include <cstdint>
#include <vector>

namespace cpscope {

/// The figures of a plan (contract, section 3). Pairs are (query, key, query head) triples of the
/// forward.
struct PlanSummary {
  int32_t steps = 0;
  int64_t visible_pairs = 0;
  std::vector<int64_t> pairs_by_rank;                    // [rank]
  std::vector<std::vector<int64_t>> pairs_by_step_rank;  // [step][rank]
  double rank_max_over_mean = 1.0;
  double critical_path_over_ideal = 1.0;
  std::vector<int64_t> forward_bytes, backward_bytes;              // [rank] sent
  std::vector<int64_t> forward_small_bytes, backward_small_bytes;  // [rank] fp32 statistics and
                                                                   // scales sent
  int64_t kv_bytes_necessary = 0;  // forward, all ranks and KV heads, from layout and mask alone
  int64_t kv_bytes_moved = 0;      // forward, all ranks
};

PlanSummary summarise(const Plan& plan);

/// Bytes of K and V that must reach a rank other than their owner: each row once for each remote
/// rank that owns a query which sees it. Counted row by row from the mask, independent of the
/// planner.
int64_t necessary_kv_bytes(const Plan& plan);

/// The same between groups of `group` consecutive ranks (the last may be smaller): each row once
/// for each group that does not hold it and has a rank that needs it. Expects a plan without keys
/// that every rank holds.
int64_t necessary_kv_bytes_of_groups(const Plan& plan, int32_t group);

/// The same for queries that are computed elsewhere: each row once for each rank that neither owns
/// it nor can do without it for its `queries`, lists of query tokens.
int64_t necessary_kv_bytes(const Plan& plan,
                           const IdVector<RankId, std::vector<RunListId>>& queries);

}  // namespace cpscope
