#pragma once

#include "gui/model/plan_index.h"

#include <cstdint>
#include <vector>

namespace cpscope::gui {

/// The busiest rank of a step.
struct BusiestRank {
  int32_t step = 0;       // index in PlanIndex::steps
  int32_t rank = -1;      // -1: no rank computes
  int64_t pairs = 0;      // pairs of that rank
  int64_t all_pairs = 0;  // pairs of all ranks
};

/// The figures of the balance view, counted once per plan. Pairs are (query, key, query head)
/// triples; the backward counts those of its own items.
struct Balance {
  std::vector<int64_t> pairs[2];   // [is_backward][rank]
  std::vector<int64_t> bytes[2];   // [is_backward][rank] sent
  std::vector<BusiestRank> steps;  // forward ones first
  int64_t critical[2] = {0, 0};    // [is_backward] sum of the busiest ranks over steps
  int64_t total[2] = {0, 0};       // [is_backward] pairs of all ranks
  int64_t kv_necessary = 0, kv_moved = 0;
  int64_t slots[2] = {0, 0};  // [Side] ids of the packed padded batch
  int64_t valid[2] = {0, 0};  // [Side] ids that hold a valid token

  double mean_pairs(bool is_backward) const;
  double mean_bytes() const;  // mean over both passes
  int64_t bytes_of(int64_t rank) const { return bytes[0][rank] + bytes[1][rank]; }
};

Balance measure_balance(const PlanIndex& plan);

}  // namespace cpscope::gui
