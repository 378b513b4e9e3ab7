#pragma once

#include "sim/scenario/scenario.h"

#include <vector>

namespace cpscope {

/// The ways with one CP size for all sequences, as Megatron's context_parallel_size is (cp_sizes =
/// N): powers of two that divide cp_size and hold the longest sequence in max_tokens_per_rank; of
/// the types of cp_sizes, in layout dual_chunk. None where a CP size for each sequence is not
/// compared either.
std::vector<Parallel> list_fixed_groups(const Scenario& scenario);

}  // namespace cpscope
