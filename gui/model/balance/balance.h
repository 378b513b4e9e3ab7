#pragma once

#include "gui/model/plan_index.h"
#include "sim/plan/direction.h"

#include <cstdint>
#include <vector>

namespace cpscope::gui {

/// The busiest rank of a step.
struct BusiestRank {
  int32_t step = 0;       // index in PlanIndex::steps
  int32_t rank = -1;      // -1: no rank computes
  int64_t pairs = 0;      // pairs of that rank
  int64_t all_pairs = 0;  // pairs of all ranks
  int32_t round = -1;     // of cp_sizes; -1 without rounds
};

/// The figures of the balance view, counted once per plan. Pairs are (query, key, query head)
/// triples; the backward counts those of its own items.
struct Balance {
  ByDirection<std::vector<int64_t>> pairs;  // [rank]
  ByDirection<std::vector<int64_t>> bytes;  // [rank] sent
  std::vector<BusiestRank> steps;           // forward ones first
  ByDirection<int64_t> critical;            // sum of the busiest ranks over steps
  ByDirection<int64_t> total;               // pairs of all ranks
  int64_t kv_necessary = 0, kv_moved = 0;
  int64_t slots[2] = {0, 0};  // [Side] ids of the packed padded batch
  int64_t valid[2] = {0, 0};  // [Side] ids that hold a valid token

  double mean_pairs(Direction direction) const;
  double mean_bytes() const;  // mean over both passes
  int64_t bytes_of(int64_t rank) const { return bytes.forward[rank] + bytes.backward[rank]; }
};

Balance measure_balance(const PlanIndex& plan);

}  // namespace cpscope::gui
