#pragma once

#include "reference/head_group.h"

#include <cstdint>
#include <vector>

namespace cpscope::reference {

/// Length of contiguous pieces such that `longest` positions overlap as many pieces as the schedule
/// has hops. Pieces of the whole sequence would be wrong: a window sees few of them, while a
/// schedule with striped tokens makes all its hops inside the window.
int64_t piece_length(int64_t longest, int32_t hops);

/// Queries and query heads of one share of the gradients of keys.
struct ShareSize {
  int64_t queries = 1;
  int32_t heads = 1;
};
/// Such that the key seen by most queries gets as many shares as the schedule adds. Where ranks
/// exchange heads, these are of different heads if few queries see a key.
ShareSize size_of_share(const HeadGroup& group);

/// Positions of the queries of each share of `length` queries, in the order of summation: queries
/// that see fewest keys first, which is natural order under a causal mask and a window. Their
/// weights are largest, so all later hops round a sum of full size, as most hops do in a schedule
/// with another order.
std::vector<KeyRun> order_shares(const HeadGroup& group, int64_t length);

}  // namespace cpscope::reference
