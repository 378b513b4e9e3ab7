#pragma once

#include "sim/base/id_vector.h"
#include "sim/base/ids.h"
#include "sim/plan/batch_slots.h"
#include "sim/plan/check/plan_check.h"
#include "sim/plan/plan.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace cpscope {

/// Sequence and position of one row of a buffer. sequence -1: padding or tail.
struct RowPlace {
  int64_t token = 0;
  int64_t sequence = -1;
  int64_t position = -1;
};

/// Rows [begin, end) of a buffer in one run and one sequence, or of padding.
struct RowSeries {
  int64_t begin = 0, end = 0;
  int64_t stride = 1;
  RowPlace first;
  int64_t stretch = 0;  // number of the stretch that it is a part of

  RowPlace place(int64_t row) const {
    const int64_t beyond = (row - begin) * stride;
    if (first.sequence < 0) return {first.token + beyond, -1, -1};
    return {first.token + beyond, first.sequence, first.position + beyond};
  }
};

/// A stretch of rows of one token list: valid tokens of one sequence with ascending positions, or
/// padding (sequence -1).
struct Stretch {
  int64_t row_begin = 0, row_end = 0;
  int64_t sequence = -1;
};

/// Where in a list of parts of a buffer, which follow each other from row 0 on, a row may lie: a
/// search among all of them would miss the caches.
class RowIndex {
 public:
  /// `count` parts; end_of(i) is the row after the last one of part i.
  template <class EndOf>
  void make(size_t count, int64_t rows, EndOf end_of) {
    while ((rows >> shift_) > static_cast<int64_t>(count)) ++shift_;
    for (size_t i = 0; i < count; ++i) {
      while ((std::ssize(part_at_) << shift_) < end_of(i)) part_at_.push_back(i);
    }
  }

  /// The first and the last part that may hold the row, or, behind all rows, the last part; there
  /// is a part.
  std::pair<size_t, size_t> near(int64_t row, size_t count) const {
    const size_t bucket = std::min(static_cast<size_t>(row >> shift_), part_at_.size() - 1);
    return {part_at_[bucket], bucket + 1 < part_at_.size() ? part_at_[bucket + 1] : count - 1};
  }

 private:
  int shift_ = 0;
  std::vector<size_t> part_at_;  // of rows 0, 2^shift_, 2 * 2^shift_, ...
};

/// Reads a token list row by row without writing it out. The checker's own index code, independent
/// of the planner's.
class RowReader {
 public:
  RowReader(const Plan& plan, RunListId list, Side side);

  RowPlace place(int64_t row) const { return series(row).place(row); }
  /// The series that holds a row.
  const RowSeries& series(int64_t row) const;
  /// The stretches that touch rows [begin, end).
  std::pair<const Stretch*, const Stretch*> stretches(int64_t begin, int64_t end) const;
  /// The same if the series of row `begin` is known.
  std::pair<const Stretch*, const Stretch*> stretches(const RowSeries& first, int64_t end) const;
  int64_t rows() const { return rows_; }

 private:
  int64_t sequence_of(int64_t token) const;

  const Plan& plan_;
  Side side_;
  int64_t rows_ = 0;
  std::vector<RowSeries> series_;
  std::vector<Stretch> stretches_;
  RowIndex series_index_;
};

/// Ids with a signed weight. Used to prove that two multisets of ids are equal.
struct WeightedRun {
  TokenRun run;
  uint64_t weight = 0;  // arithmetic modulo 2^64
};

/// First id at which the weights do not sum to zero, or -1. O(runs log runs) when all strides are 1
/// or one common value, O(runs) when there are more of them than ids.
int64_t first_unbalanced(const std::vector<WeightedRun>& runs);

/// First id that two of the runs share, or -1.
int64_t first_shared(const std::vector<TokenRun>& runs);

/// Selects rows of token lists; caches where each run of a list starts.
class RowPicker {
 public:
  explicit RowPicker(const Plan& plan) : plan_(plan) {}

  /// The ids of the rows `rows` (run list of row numbers; kAllRows = all) of the token list
  /// `tokens`.
  std::vector<TokenRun> pick(RunListId tokens, RunListId rows);
  /// The same into a list that has memory from before.
  void pick(RunListId tokens, RunListId rows, std::vector<TokenRun>& into);

 private:
  const std::vector<int64_t>& first_rows(RunListId list);

  const Plan& plan_;
  std::map<RunListId, std::vector<int64_t>> first_rows_;  // [run + 1]
};

/// Checks that ids, lists, stages and slices are in range; a part of "buffers". The other checks
/// index by them.
CheckResult check_structure(const Plan& plan);
CheckResult check_ownership(const Plan& plan);
CheckResult check_buffers(const Plan& plan);
CheckResult check_coverage(const Plan& plan);
CheckResult check_rounds(const Plan& plan);    // of cp_sizes
CheckResult check_movement(const Plan& plan);  // also merge order
CheckResult check_partials(const Plan& plan);
CheckResult check_gradients(const Plan& plan);
CheckResult check_bytes(const Plan& plan);
/// The same for group_cast, which moves necessary rows alone. Bytes of an element of q, k, v and
/// d_out, and of dk and dv.
CheckResult check_cast_bytes(const Plan& plan, int64_t input_bytes, int64_t wire_bytes);

CheckResult passed(std::string name, std::string detail);
CheckResult broken(std::string name, std::string detail, std::optional<ItemId> item = std::nullopt);

}  // namespace cpscope
