#pragma once

#include "sim/clock/candidates.h"

#include <cstdint>
#include <vector>

namespace cpscope {

/// One CP size for all sequences, as Megatron's context_parallel_size is: all ranks are split in
/// groups of so many, which are data-parallel replicas. Each has sequences of its own, and all wait
/// for the slowest. Powers of two that divide cp_size and hold the longest sequence in
/// max_tokens_per_rank; of the types of cp_sizes, in layout dual_chunk. None where a CP size for
/// each sequence is not compared either.
std::vector<Parallel> list_fixed_groups(const Scenario& scenario);

/// [group] The sequences of each group: in order, the next one goes to the group with the fewest
/// tokens, the first of equal ones.
std::vector<std::vector<int64_t>> share_among_groups(const std::vector<int64_t>& lengths,
                                                     int64_t groups);

/// Plans and predicts every group by itself: a candidate with is_in_groups. Refuses groups that do
/// not fit in the nodes of the cluster, and masks that name tokens of the whole batch.
void try_fixed_groups(const Scenario& scenario, const Cluster& cluster,
                      const CandidateOptions& options, Candidate& candidate);

}  // namespace cpscope
