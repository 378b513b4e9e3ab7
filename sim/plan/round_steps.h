#pragma once

#include "sim/plan/plan.h"

#include <cstdint>
#include <vector>

namespace cpscope {

/// [step] The round of cp_sizes to which each step of a pass belongs, by the queries that its first
/// compute has, or by its keys; a step without computes belongs to the round before. Empty without
/// rounds.
std::vector<int32_t> rounds_of_steps(const Plan& plan, Direction direction);

/// The round of cp_sizes in which the queries of a list are computed; -1 for a list without tokens.
int32_t round_of_queries(const Plan& plan, RunListId queries);

/// True for a copy between a rank's home buffers and those of a round, whose rows are the same.
bool is_of_round(const Plan& plan, const TransferItem& item);

}  // namespace cpscope
