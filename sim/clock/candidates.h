#pragma once

#include "sim/base/run_control.h"
#include "sim/clock/cluster.h"
#include "sim/scenario/scenario.h"

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

/// Time of both passes by kind, mean over the ranks; the first four sum to the candidate's total.
struct MeanTimes {
  double compute_us = 0, local_us = 0, exposed_us = 0, idle_us = 0;
  // As in RankTimes: of compute_us, exposed_us and idle_us.
  double launch_us = 0, partner_us = 0, host_us = 0, groups_us = 0;

  double waiting_us() const { return partner_us + idle_us - host_us; }  // for other ranks
};

/// One way to split and move the batch, and its predicted figures.
struct Candidate {
  Parallel parallel;
  std::string name;     // "a2a+p2p, a2a_size 4, lpt_local 512"
  std::string refusal;  // why it is impossible; empty if possible, and then all below is filled
  bool is_own = false;  // the scenario's own
  double forward_us = 0, backward_us = 0;
  MeanTimes mean;
  double exposed_us = 0;                   // both passes, of the rank with the largest value
  int64_t bytes_sent = 0;                  // both passes, of the rank that sends most
  int64_t kv_necessary = 0, kv_moved = 0;  // bytes of the forward, all ranks
  double rank_max_over_mean = 1, critical_path_over_ideal = 1;
  double padding_share = 0;   // fraction of query rows that are padding
  int64_t query_rows = 0;     // of a rank, with padding, the mean
  int64_t visible_pairs = 0;  // (query, key, query head) triples of the forward
  // cp_sizes: fraction of the time in which a rank's group has ended its round, and waits for the
  // slowest one; the mean of all ranks.
  std::optional<double> group_loss = {};
  int64_t memory_bytes = 0;  // high-water mark of the fullest rank
  bool fits = true;          // in the memory of one GPU
  int64_t time_number = 0;   // ascends with the time; the same for times that are printed alike
  bool is_pareto = false;    // no other is at least as good in time, bytes sent and memory
  bool is_wasteful = false;  // pads far more than the minimum, and more than other layers need
  bool is_searched = false;  // tried by a search alone (search.h)

  double reshard_us = 0;  // of all changes of order that CandidateOptions::reshards asks for

  double total_us() const { return forward_us + backward_us + reshard_us; }
  bool can_be_best() const { return refusal.empty() && fits && !is_wasteful; }
};

/// Why a search has ended: nothing was left to try, or the limit of time or tries was reached.
enum class SearchEnd : uint8_t { done, time, tries };

/// Bytes of both passes over wires that move them evenly, at their best rate.
struct WireBound {
  int64_t bytes = 0;
  int64_t wires = 0;  // of ranks, or NICs of the nodes that are used; 0: none
  double gb_s = 0;    // of one, one direction

  double us() const {
    return wires == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(wires) / gb_s * 1e-3;
  }
};

/// What a search has tried beside the candidates of compare_candidates, and bounds below which no
/// way's predicted time can be.
struct SearchReport {
  int64_t ways = 0;          // communication types with their keys x layouts
  int64_t ways_tried = 0;    // planned, or refused
  int64_t ways_refused = 0;  // of those tried
  int64_t ways_too_slow =
      0;  // not planned: their share of the work alone takes longer than the best
  std::vector<std::string> starts;  // names of the candidates whose order was searched
  int64_t chunk = 0;                // most tokens that change ranks together
  int64_t orders_tried = 0;
  SearchEnd end = SearchEnd::done;
  int64_t pairs = 0;        // visible (query, key, query head) triples
  double pairs_per_us = 0;  // of one GPU, the mean of forward and backward if there are both
  double work_us = 0;       // pairs / (ranks * pairs_per_us)
  // True if the bytes below are keys, and their gradients, that ranks must have from others to
  // compute with their own queries; else they are all that the best sends.
  bool sends_least = false;
  WireBound wires, between;  // of the best: all its wires, and those between nodes

  int64_t tries() const { return ways_tried + orders_tried; }
};

/// All candidates of one batch on one cluster. Of those that are equal in time, bytes and memory
/// the scenario's own one is first, then the one with the simplest layout and communication.
struct Candidates {
  std::string cluster, stack;
  double device_memory_gib = 0;
  std::vector<Candidate> candidates;  // those that are possible, fastest first; then the refused
  int64_t best = -1;                  // fastest that can_be_best; -1: none
  int64_t own = -1;                   // the scenario's own
  double most_padding = 1;            // fraction of the rows above which a candidate is wasteful
  std::optional<SearchReport> search = {};
  std::string note = {};  // note_on_times
  int32_t reshards = 0;   // CandidateOptions::reshards
};

struct CandidateOptions {
  std::string_view stack = {};
  std::vector<int64_t> dispatch_chunks = {256, 512, 1024, 2048};
  /// Changes of order in the forward of a layer: layers of other kinds, such as state-space models,
  /// need consecutive tokens on each rank (layout contiguous). The backward has as many.
  int32_t reshards = 0;
  RunControl control = {};
  // Why a candidate is not even planned (it would not fit in this machine's memory); may be empty.
  std::function<std::optional<Error>(const Scenario&)> refuse = {};
};

/// The communication types of common frameworks x layout, x a2a_size if there is a choice, x
/// dispatch_chunk for lpt and lpt_local; double_ring x ring_windows; where keys outnumber queries
/// kQueriesTravel x layout; list_fixed_groups; and the scenario's own way if it is none of these.
/// An imported order occurs only in the scenario's own way.
std::vector<Parallel> list_candidates(const Scenario& scenario,
                                      const std::vector<int64_t>& dispatch_chunks,
                                      const std::vector<int32_t>& ring_windows = {});

/// The types that send queries to the keys, and that comparisons try.
inline constexpr std::array kQueriesTravel = {CommType::pass_q, CommType::token_ring,
                                              CommType::gather_q};

/// True if both split and move a batch in the same way; ignores keys that their type does not read.
bool is_same_way(const Parallel& a, const Parallel& b);

/// True if `a` is at least as good as `b` in time, bytes sent and memory; both are possible, and of
/// one comparison that is finished.
bool is_as_good(const Candidate& a, const Candidate& b);

/// KV bytes moved over those that are necessary, "1.33"; without necessary ones "unneeded" if some
/// are moved, else "-".
std::string describe_kv_ratio(const Candidate& candidate);

/// Plans each candidate and predicts it, on all cores. Plans are not proved here. Errors: as
/// predict (unknown stack, too few GPUs, no kernel times), cancelled.
Result<Candidates> compare_candidates(const Scenario& scenario, const Cluster& cluster,
                                      const CandidateOptions& options = {});

// The same in parts, for callers that must not block: begin all, try each, then finish.

/// Every candidate by name, none planned yet. Errors: as compare_candidates, but cancelled.
Result<Candidates> begin_comparison(const Scenario& scenario, const Cluster& cluster,
                                    const CandidateOptions& options = {});
/// Plans and predicts one of them. Safe from several threads, each with a candidate of its own.
void try_candidate(const Scenario& scenario, const Cluster& cluster,
                   const CandidateOptions& options, Candidate& candidate);
/// Marks, sorts, and selects the best of candidates that were all tried.
void finish_comparison(Candidates& comparison);

/// Makes the candidate with this way the scenario's own, as if it had been so when the comparison
/// was begun. Returns false, and changes nothing, if there is none.
bool move_own(Candidates& comparison, const Parallel& own);

/// RFC 4180 with "\n": a line of column names with units, then one line per candidate in order.
std::string comparison_csv(const Candidates& comparison);

/// One or two sentences: the recommended candidate, its gain over the scenario's own and over the
/// next one with another way, and the reason.
std::string recommend(const Candidates& comparison);

}  // namespace cpscope
