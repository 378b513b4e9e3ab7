#pragma once

#include "gui/model/mask/work_map.h"
#include "sim/plan/visible_interval.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace cpscope::tests {

/// The visibility and work of every single pair, computed token by token with the checker's own
/// reading of the mask and from the rows of every slice.
struct PairTruth {
  int64_t q = 0, k = 0;
  std::vector<char> is_visible;     // [q][k]
  std::vector<gui::CellWork> work;  // [q][k] of one pass

  int64_t at(int64_t i, int64_t j) const { return i * k + j; }
};

inline void see_pairs(const gui::PlanIndex& index, PairTruth& truth) {
  const auto& sequences = index.plan().layout.slots.sequences;
  const SliceRows rows(index.plan());
  for (size_t s = 0; s < sequences.size(); ++s) {
    for (int64_t i = 0; i < sequences[s].q_valid; ++i) {
      for (int64_t j = 0; j < sequences[s].kv_valid; ++j) {
        const int64_t slice = find_slice(index.plan(), rows, static_cast<int64_t>(s), i, j);
        if (is_inside(index.plan(), static_cast<int64_t>(s), i, j, slice))
          truth.is_visible[truth.at(sequences[s].q_valid_begin() + i,
                                    sequences[s].kv_valid_begin() + j)] = 1;
      }
    }
  }
}

inline void join(gui::CellWork& into, const gui::CellWork& work) {
  if (!work.has_work()) return;
  if (!into.has_work()) {
    into = work;
    return;
  }
  into.first_step = std::min(into.first_step, work.first_step);
  into.last_step = std::max(into.last_step, work.last_step);
  into.first_rank = std::min(into.first_rank, work.first_rank);
  into.last_rank = std::max(into.last_rank, work.last_rank);
  if (into.item != work.item) into.item = gui::CellWork::kManyItems;
}

inline void work_pairs(const gui::PlanIndex& index, Direction direction, PairTruth& truth) {
  const auto& items = index.pass(direction).computes;
  for (size_t n = 0; n < items.size(); ++n) {
    const int32_t step = to_index(items[n].step), rank = to_index(items[n].rank);
    const std::vector<int64_t> q = expand(index.plan().list(items[n].q_tokens));
    const std::vector<int64_t> k = expand(index.plan().list(items[n].kv_tokens));
    for (const BandSlice& slice : index.plan().slices_of(items[n])) {
      for (int64_t i = slice.q0; i < slice.q1; ++i) {
        for (int64_t j = slice.k0; j < slice.k1; ++j) {
          const int64_t diagonal = (j - slice.k0) - (i - slice.q0);
          if (diagonal < slice.lo || diagonal > slice.hi) continue;
          join(truth.work[truth.at(q[i], k[j])], {step, step, rank, rank, static_cast<int64_t>(n)});
        }
      }
    }
  }
}

inline PairTruth write_out(const gui::PlanIndex& index, Direction direction) {
  PairTruth truth;
  truth.q = index.tokens(Side::q);
  truth.k = index.tokens(Side::kv);
  truth.is_visible.assign(static_cast<size_t>(truth.q * truth.k), 0);
  truth.work.assign(truth.is_visible.size(), {});
  see_pairs(index, truth);
  work_pairs(index, direction, truth);
  return truth;
}

}  // namespace cpscope::tests
