#pragma once

#include "sim/clock/candidates.h"

#include <cstdint>
#include <string>
#include <vector>

namespace cpscope {

struct SearchOptions {
  CandidateOptions candidates = {};
  // Nothing more is begun after this time, except the candidates of compare_candidates.
  double seconds = 60;
  int64_t tries = 0;     // most plans besides these candidates; 0: no limit
  uint64_t seed = 1;     // of the exchanges of chunks that are drawn
  ShareDone share = {};  // how much of the time or the tries is used; candidates.control.progress
                         // is of the comparison before
};

/// Every communication type with every choice of its keys (a2a_size, mesh_q, ring_window,
/// ring_backward, heads_per_stage, combine, dispatch) x every layout with every stripe or
/// dispatch_chunk that is tried. Keys that a type does not read have their defaults.
std::vector<Parallel> list_search_ways(const Scenario& scenario,
                                       const std::vector<int64_t>& dispatch_chunks);

/// The candidates of compare_candidates, then those of list_search_ways, then orders of tokens
/// (layout indices) for the fastest ways: chunks change ranks as long as the predicted time of the
/// whole plan falls. Ways whose share of the work alone takes longer than the best are not planned.
/// The best is never slower than that of compare_candidates. The same options give the same result
/// unless the time ends the search; then the number of tries does (Candidates::search). Errors: as
/// compare_candidates.
Result<Candidates> search_candidates(const Scenario& scenario, const Cluster& cluster,
                                     const SearchOptions& options = {});

/// The scenario split as the candidate says, without keys that it does not read. `order_file`: the
/// name of the order file of a searched order.
Scenario take_way(const Scenario& scenario, const Candidate& candidate,
                  const std::string& order_file);

}  // namespace cpscope
