#pragma once

#include "reference/head_group.h"

#include <cstdint>
#include <vector>

namespace cpscope::reference {

/// Length of contiguous pieces such that `longest` positions overlap as many pieces as the schedule
/// has hops. Pieces of the whole sequence would be wrong: a window sees few of them, while a
/// schedule with striped tokens makes all its hops inside the window.
int64_t piece_length(int64_t longest, int32_t hops);

/// Positions of the queries of each share, in the order of summation: queries that see fewest keys
/// first, which is natural order under a causal mask and a window. Their weights are largest, so
/// all later hops round a sum of full size, as most hops do in a schedule with another order.
std::vector<KeyRun> order_shares(const HeadGroup& group);

}  // namespace cpscope::reference
