#pragma once

#include "sim/base/result.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <span>
#include <vector>

namespace cpscope {

/// Consecutive ranks that share some sequences, as a context-parallel group of their own.
struct CpGroup {
  int32_t first_rank = 0;
  int32_t size = 0;
  std::vector<int64_t> sequences;  // in the order in which they were given to the group

  bool has(int32_t rank) const { return rank >= first_rank && rank < first_rank + size; }
  friend bool operator==(const CpGroup&, const CpGroup&) = default;
};

/// Groups that work at the same time: disjoint, by first rank.
struct CpRound {
  std::vector<CpGroup> groups;

  friend bool operator==(const CpRound&, const CpRound&) = default;
};

/// The rounds of parallel.cp_sizes; none if every sequence is on all ranks. Given sizes: sequences
/// in order take the next free ranks, and begin a round if there are too few. Refuses what cannot
/// be grouped: see also schedule_hybrid.
Result<std::vector<CpRound>> make_rounds(const Scenario& scenario);

/// Megatron's hybrid context parallelism (BalancedCPScheduler of megatron-core 0.16.1): a sequence
/// gets the smallest power of two of ranks on which no one holds more than `max_tokens_per_rank` of
/// it; rounds are filled longest first, and groups double until no rank is idle. Refuses a sequence
/// that needs more than `ranks`, and what Megatron's scheduler stops at: idle ranks that no group
/// can take.
Result<std::vector<CpRound>> schedule_hybrid(std::span<const int64_t> lengths,
                                             int64_t max_tokens_per_rank, int32_t ranks);

/// [sequence] The round in which each sequence is computed.
std::vector<int32_t> round_of_sequences(std::span<const CpRound> rounds, size_t sequences);

}  // namespace cpscope
