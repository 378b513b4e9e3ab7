#pragma once

#include "sim/clock/candidates.h"

#include <cstdint>
#include <string>
#include <vector>

namespace cpscope {

/// The fastest forward in which queries travel and the fastest in which keys do, for one number of
/// queries.
struct CrossoverPoint {
  int64_t queries = 0;
  std::string queries_way, keys_way;       // names; empty if none is possible
  double queries_us = 0.0, keys_us = 0.0;  // predicted

  bool keys_are_faster() const {
    return !keys_way.empty() && (queries_way.empty() || keys_us < queries_us);
  }
};

/// Where sending keys begins to pay, as a batch of given keys gets more queries.
struct Crossover {
  int64_t keys = 0;
  std::vector<CrossoverPoint> points;  // ascending
  int64_t queries = 0;                 // from so many on keys are faster; 0: never
};

/// Predicts the forward of the batch's keys with more and more queries that end each sequence (a
/// cached prefix, of which a decoder's tokens, a prompt or a chunk of it are the rest): twice as
/// many each time, from one a sequence up to as many as keys, then between the last two until the
/// answer is known to 2 %. Sequences have queries in proportion to their keys. Queries travel in
/// kQueriesTravel, keys in p2p, all_gather and group_cast; layouts contiguous and dual_chunk, or
/// striped alone if the scenario has it: the stripes of a cache stay where they are. Errors: a mask
/// that is given cell by cell or by slices, bias, or positions from a file; as compare_candidates.
Result<Crossover> find_crossover(const Scenario& scenario, const Cluster& cluster,
                                 const CandidateOptions& options = {});

}  // namespace cpscope
