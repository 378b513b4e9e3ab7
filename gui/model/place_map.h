#pragma once

#include "gui/model/axis.h"
#include "gui/model/plan_index.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace cpscope::gui {

/// One chunk, or a comb: a part of the packed order where single tokens of several ranks alternate.
struct PackedPart {
  int64_t begin = 0, end = 0;  // packed padded ids
  int32_t rank = -1;           // owner; -1 in a comb, and where every rank owns heads of its own
  int64_t row = -1;            // local row of begin; -1 in a comb
  int64_t first_run = 0;       // of a comb: its runs are [first_run, first_run + num_runs) of
  int64_t num_runs = 0;        // PlanIndex::owned

  bool is_comb() const { return num_runs > 0; }
};

/// Consecutive rows of a local buffer whose tokens have equal distances.
struct LocalPart {
  int32_t rank = 0;
  int64_t row = 0, rows = 0;
  int64_t token = 0, stride = 1;  // row + i holds token + i * stride
};

/// The positions of the tokens of one side in both orders, cut where a chunk or a sequence ends.
/// Made once per plan.
struct PlaceMap {
  Side side = Side::q;
  int32_t num_ranks = 1;
  int64_t tokens = 0;
  std::vector<PackedPart> packed;      // ascending, without gaps
  std::vector<LocalPart> local;        // by rank, then by row
  std::vector<size_t> first_local;     // [num_ranks + 1] offsets into local
  std::vector<int64_t> rows_of_rank;   // [num_ranks]
  std::vector<int64_t> valid_of_rank;  // [num_ranks] rows that hold valid tokens
  int64_t most_rows = 0;               // largest number of rows of a rank
  std::vector<int64_t> slot_begin;     // [sequences + 1] ids; the last is the begin of the tail
  std::vector<int64_t> front_of_slot;  // [sequences] padding before the valid tokens
  std::vector<int64_t> valid_of_slot;  // [sequences]
  std::vector<int64_t> valid_before;   // [sequences + 1] valid tokens in earlier slots
  int64_t stripe = 0;                  // tokens of one stripe; 0 if the layout has no stripes
  IdVector<RankId, HeadRange> heads;   // of each rank, where all have all rows; else none
  std::vector<IdVector<RankId, TokenRun>> rounds;  // [round][rank] cp_sizes: its local rows

  std::span<const LocalPart> local_of(int32_t rank) const {
    const auto r = static_cast<size_t>(rank);
    return std::span(local).subspan(first_local[r], first_local[r + 1] - first_local[r]);
  }
  /// Number of valid tokens with ids below `token`.
  int64_t count_valid_below(int64_t token) const;
  /// Number of padding tokens in [begin, end).
  int64_t count_padding(int64_t begin, int64_t end) const;
  /// The sequence whose slot holds the token; the number of sequences for the tail.
  size_t sequence_at(int64_t token) const;
  /// First valid id of the sequence.
  int64_t valid_begin(size_t sequence) const {
    return slot_begin[sequence] + front_of_slot[sequence];
  }
  /// First id behind the sequence's valid ones.
  int64_t valid_end(size_t sequence) const {
    return valid_begin(sequence) + valid_of_slot[sequence];
  }
  /// The valid ids of [begin, end), a part of one slot, or of the tail; empty, at its end, if there
  /// are none.
  std::pair<int64_t, int64_t> valid_in(int64_t begin, int64_t end) const;
  size_t num_sequences() const { return valid_of_slot.size(); }
};

/// Rows of the part, relative to its first one, that hold padding: ascending, disjoint intervals.
std::vector<std::pair<int64_t, int64_t>> padding_rows(const PlaceMap& map, const LocalPart& part);

PlaceMap make_place_map(const PlanIndex& index, Side side);

/// The tokens of the comb inside [begin, end), as parts with one owner each: drawn when the teeth
/// are wide enough.
std::vector<PackedPart> expand_comb(const PlanIndex& index, Side side, const PackedPart& comb,
                                    int64_t begin, int64_t end);

/// Neighbours [first, first + count) drawn as one; count is 1 if the element is wide enough.
struct Fold {
  size_t first = 0;
  size_t count = 0;
};

/// Joins neighbours that are narrower than `least` units until they are wide enough. `begin_of` and
/// `end_of` return the units of element i of `count` ascending ones without overlap; only those
/// that touch [lo, hi) are returned. O(folds * log count).
template <class BeginOf, class EndOf>
std::vector<Fold> fold_narrow(size_t count, double lo, double hi, double least, BeginOf begin_of,
                              EndOf end_of) {
  const auto first_where = [count](size_t from, auto holds) {
    size_t to = count;
    while (from < to) {
      const size_t middle = from + (to - from) / 2;
      if (holds(middle))
        to = middle;
      else
        from = middle + 1;
    }
    return from;
  };
  const auto width = [&](size_t i) {
    return static_cast<double>(end_of(i)) - static_cast<double>(begin_of(i));
  };
  std::vector<Fold> folds;
  size_t at = first_where(0, [&](size_t i) { return static_cast<double>(end_of(i)) > lo; });
  while (at < count && static_cast<double>(begin_of(at)) < hi) {
    size_t next = at + 1;
    if (width(at) < least) {
      const double target = static_cast<double>(begin_of(at)) + least;
      next = first_where(next, [&](size_t i) { return static_cast<double>(end_of(i)) >= target; });
      // The element that completes the fold belongs to it unless it is wide enough on its own.
      if (next < count && width(next) < least && static_cast<double>(begin_of(next)) < target)
        ++next;
      next = std::max(next, at + 1);
    }
    folds.push_back({at, next - at});
    at = next;
  }
  return folds;
}

}  // namespace cpscope::gui
