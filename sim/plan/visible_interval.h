#pragma once

#include "sim/plan/band.h"
#include "sim/plan/plan.h"

#include <cstdint>
#include <span>
#include <vector>

namespace cpscope {

/// The checker's own implementation of the mask, row by row; shares no code with mask_bands, which
/// the planner uses.

/// Key positions that query position i of a sequence sees under mask type, window and chunk (slices
/// not applied): [begin, end).
ColumnRange visible_interval(const Attention& attention, const SequenceSlot& sequence, int64_t i);

/// The mask slices of a plan by the queries that they hold, for many questions about one plan.
class SliceRows {
 public:
  explicit SliceRows(const Plan& plan);

  /// Numbers of the slices that may hold query position i of a sequence, ascending: all that do.
  std::span<const int32_t> near(int64_t sequence, int64_t i) const;

 private:
  std::vector<int64_t> q_begin_;   // [sequence] valid queries before it
  int64_t rows_per_bucket_ = 1;    // queries whose slices are listed together
  std::vector<int64_t> first_{0};  // [buckets + 1] offsets into numbers_
  std::vector<int32_t> numbers_;   // by bucket
};

/// True if key position j is visible to query position i; with slices, through slice number
/// `slice`.
bool is_inside(const Plan& plan, int64_t sequence, int64_t i, int64_t j, int64_t slice);

/// The first mask slice that holds the cell, or -1.
int64_t find_slice(const Plan& plan, const SliceRows& rows, int64_t sequence, int64_t i, int64_t j);

/// Rows of one sequence whose visible keys are an interval each. With mask slices a row is in one
/// block for every slice that holds it.
struct VisibleBlock {
  int64_t sequence = 0;
  int64_t begin = 0, end = 0;  // query positions
  const MaskSlice* slice = nullptr;
  int64_t q_base = 0, kv_base = 0;  // valid tokens before the sequence
};

/// All rows of the batch in blocks; the intervals of the blocks of a row are disjoint.
std::vector<VisibleBlock> visible_blocks(const Plan& plan);

/// Key positions that a row of a block sees through it: [begin, end), empty when begin >= end.
ColumnRange visible_keys(const Plan& plan, const VisibleBlock& block, int64_t i);

/// [query token of the packed batch] True if it sees a key; never for padding.
std::vector<bool> find_seeing_queries(const Plan& plan);

/// Visible (query, key) pairs of the whole batch, counted row by row.
int64_t count_all_visible(const Plan& plan);

}  // namespace cpscope
