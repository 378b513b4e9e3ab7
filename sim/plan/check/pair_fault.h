#pragma once

#include "sim/base/ids.h"
#include "sim/plan/plan.h"

#include <cstdint>
#include <optional>

namespace cpscope {

/// Positions begin, begin + stride, ... below end of one sequence; one rank owns them.
struct OwnedPositions {
  RankId owner{};
  int64_t begin = 0, end = 0, stride = 1;
};

/// Visible pairs that a pass computes not at all, or several times: all visible pairs of some
/// queries and keys of one sequence.
struct PairFault {
  int64_t sequence = 0;
  OwnedPositions queries, keys;
  HeadRange heads;                  // query heads
  int64_t first = -1, second = -1;  // compute items of the pass that share the first pair; -1: none
};

/// The first queries, in packed order, whose visible pairs are not all computed once; at most 1024
/// queries and 4096 keys. Nothing if there are none, or the batch has more than 2^24 query tokens.
/// Expects items that compute only what is visible.
std::optional<PairFault> find_pair_fault(const Plan& plan, Direction direction);

}  // namespace cpscope
