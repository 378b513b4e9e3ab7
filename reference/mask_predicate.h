#pragma once

#include "sim/run/judge.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <span>
#include <vector>

namespace cpscope::reference {

/// True if key position j of a sequence is visible to query position i of it (both valid
/// positions). Implements the text of the contract, section 2; shares no code with the planner.
/// Positions outside the valid lengths are visible to no query.
bool is_visible(const Scenario& scenario, int64_t sequence, int64_t i, int64_t j);

/// The same predicate in the form that the probes need.
MaskWitness mask_witness();

/// The mask data of one sequence.
struct SequenceMask {
  MaskType type = MaskType::no_mask;
  int64_t num_queries = 0;  // sq, valid
  int64_t num_keys = 0;     // skv, valid
  int64_t window_left = -1;
  int64_t window_right = -1;
  int64_t chunk_size = 0;
  std::vector<MaskSlice> slices;  // those that intersect a query of this sequence
  int64_t first_query = 0;        // valid queries of the sequences before
  int64_t first_key = 0;          // valid keys of the sequences before
};

SequenceMask sequence_mask(const Scenario& scenario, int64_t sequence);
/// The masks of all sequences. Cost: the number of sequences, and for each slice those that it
/// intersects.
std::vector<SequenceMask> sequence_masks(const Scenario& scenario);
bool is_visible(const SequenceMask& mask, int64_t i, int64_t j);

/// Key positions [begin, end).
struct KeyRun {
  int64_t begin = 0;
  int64_t end = 0;

  friend bool operator==(const KeyRun&, const KeyRun&) = default;
};

/// The visible keys of every query of one sequence, run-length coded. Found by evaluating the
/// predicate for every pair.
struct VisibleKeys {
  std::vector<int64_t> row_begin;  // [num_queries + 1] first run of the row
  std::vector<KeyRun> runs;        // ascending, disjoint, not empty

  std::span<const KeyRun> of_row(int64_t i) const {
    const auto row = static_cast<size_t>(i);
    return std::span(runs).subspan(static_cast<size_t>(row_begin[row]),
                                   static_cast<size_t>(row_begin[row + 1] - row_begin[row]));
  }
};

/// The same for some queries and keys (positions, ascending); runs are of indices into `keys`.
/// Cost: queries * keys evaluations of the predicate, in parallel over blocks of rows.
VisibleKeys find_visible_keys(const SequenceMask& mask, const std::vector<int64_t>& queries,
                              const std::vector<int64_t>& keys);
VisibleKeys find_visible_keys(const SequenceMask& mask);

/// True if the query sees any key; true if any query sees the key. Tests the likely pairs first, so
/// that only an empty row costs as many evaluations as there are keys or queries.
bool sees_a_key(const SequenceMask& mask, int64_t i);
bool is_seen(const SequenceMask& mask, int64_t j);

}  // namespace cpscope::reference
