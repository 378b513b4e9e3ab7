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

/// One size for all sequences, as Megatron's context_parallel_size: all ranks are split in groups
/// of `size`, data-parallel replicas, in one round. Sequences in order: the next one goes to the
/// group with the fewest tokens, the first of equal ones. Groups without a sequence are left out.
/// Refuses a size that does not divide `ranks`, and a sequence of more than `max_tokens_per_rank`
/// tokens a rank, if that is not 0.
Result<std::vector<CpRound>> share_among_groups(std::span<const int64_t> lengths, int64_t size,
                                                int64_t max_tokens_per_rank, int32_t ranks);

/// Megatron's hybrid context parallelism (BalancedCPScheduler of megatron-core 0.16.1): a sequence
/// gets the smallest power of two of ranks on which no one holds more than `max_tokens_per_rank` of
/// it; rounds are filled longest first, and groups double until no rank is idle. Refuses a sequence
/// that needs more than `ranks`, and what Megatron's scheduler stops at: idle ranks that no group
/// can take.
Result<std::vector<CpRound>> schedule_hybrid(std::span<const int64_t> lengths,
                                             int64_t max_tokens_per_rank, int32_t ranks);

/// FlexSP's choice (arXiv 2412.01523): micro-batches of about equally many tokens, as few as fit;
/// in each of them groups of powers of two of ranks, which hold at most `capacity` tokens a rank
/// and use all ranks, so that the slowest group by FlexSP's published times of a 7B model is fast.
/// FlexSP solves an integer program for this; the groups here come from a search. Refuses a
/// sequence that does not fit, and ranks that powers of two cannot use. `steps`: how often the
/// search looked at a group or a pair of sequences.
Result<std::vector<CpRound>> schedule_flexsp(std::span<const int64_t> lengths, int64_t capacity,
                                             int32_t ranks, int64_t* steps = nullptr);

/// ByteScale's sizes (arXiv 2502.21231): a sequence gets as many ranks as hold it, `capacity`
/// tokens each, any number. Rounds are filled longest first, and short sequences are packed on
/// ranks with little work; the paper's own order of filling is not public. Refuses a sequence that
/// does not fit.
Result<std::vector<CpRound>> schedule_bytescale(std::span<const int64_t> lengths, int64_t capacity,
                                                int32_t ranks);

/// [sequence] The round in which each sequence is computed.
std::vector<int32_t> round_of_sequences(std::span<const CpRound> rounds, size_t sequences);

}  // namespace cpscope
