#pragma once

#include "sim/base/id_vector.h"
#include "sim/base/ids.h"
#include "sim/plan/band.h"
#include "sim/plan/check/check_rows.h"
#include "sim/plan/check/list_cache.h"
#include "sim/plan/plan.h"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cpscope {

/// Powers of one base modulo 2^61 - 1, with one product each; exponents below `limit`.
class PowerTable {
 public:
  PowerTable(uint64_t base, int64_t limit);

  uint64_t power(int64_t exponent) const;
  /// Call before sum and divide_by_step with this stride.
  void prepare_stride(int64_t stride);
  /// Sum of power(stride * i) for i in [begin, end).
  uint64_t sum(int64_t stride, int64_t begin, int64_t end) const;
  /// value / (power(stride) - 1).
  uint64_t divide_by_step(uint64_t value, int64_t stride) const;

 private:
  int half_bits_ = 1;
  std::vector<uint64_t> low_, high_;
  std::map<int64_t, uint64_t> inverses_;  // of power(stride) - 1
};

/// The slices of a compute item and the rows that they are of; its heads and pass aside.
struct SharedSlices {
  int64_t first_slice = 0, num_slices = 0;
  RunListId q_tokens{}, kv_tokens{};

  explicit SharedSlices(const ComputeItem& item)
      : first_slice(item.first_slice),
        num_slices(item.num_slices),
        q_tokens(item.q_tokens),
        kv_tokens(item.kv_tokens) {}
  auto operator<=>(const SharedSlices&) const = default;
};

/// One (query, key, head) that a pass computes not at all, or several times.
struct PairDifference {
  int64_t query = 0, key = 0;  // packed padded ids
  int32_t head = 0;
  const ComputeItem* first = nullptr;  // item that computes it; null: none
  const ComputeItem* last = nullptr;   // of several the last one
};

/// A number for a multiset of (query token, key token, query head) triples: the sum of y^query *
/// x^key * w(head) modulo 2^61 - 1. Two different multisets have the same number with a probability
/// below 2^-28 (their difference is a polynomial of degree below 2^33 in x, y and w). Bands of
/// arithmetic runs are summed in closed form, so the cost does not depend on the number of pairs.
class PairPrint {
 public:
  explicit PairPrint(const Plan& plan);

  /// What the mask makes visible, counted row by row with the checker's own mask; all query heads.
  uint64_t of_mask() const;
  /// What the compute items of one pass do.
  uint64_t of_items(Direction direction) const;

  /// The first triple that the items of a pass compute more or less often than the mask allows.
  /// Nothing if all are computed once, or the batch has more than 2^24 query tokens. Reads every
  /// row of every item. Called when the numbers differ.
  std::optional<PairDifference> find_difference(Direction direction) const;
  /// The same in words.
  std::string first_difference(Direction direction) const;

 private:
  /// Sums of powers over the rows of one token list.
  struct ListSums {
    RunListId list{};
    std::vector<int64_t> first_row;  // [run + 1]
    std::vector<uint64_t> before;    // [run + 1] sum of the runs before it
    RowIndex index;                  // of runs

    /// The run that holds the row; behind all rows, the last one.
    size_t run_of(int64_t row) const;
  };

  /// What decides the sum of a slanted band but for its first query and key.
  struct Slant {
    int64_t rows = 0, columns = 0, lo = 0, hi = 0, stride = 1;
    bool operator==(const Slant&) const = default;
  };

  /// The rows of a compute item, and the sum of the slant of its last band, which the next band of
  /// a stripe nearly always has too.
  struct ItemSums {
    const ListSums &q, &k;
    Slant slant;
    uint64_t slanted = 0;
  };

  std::string chance_of(Direction direction, std::pair<int64_t, int32_t> cell, int64_t query) const;
  uint64_t sum_rows(const PowerTable& powers, const ListSums& sums, int64_t begin,
                    int64_t end) const;
  uint64_t sum_run(const PowerTable& powers, const TokenRun& run, int64_t count) const;
  uint64_t sum_band(ItemSums& item, const BandSlice& band) const;
  void prepare_strides(RunListId list);
  void sum_slices();
  /// The sum of a band whose first query and key are 0.
  uint64_t sum_slant(const Slant& slant) const;
  std::unique_ptr<ListSums> list_sums(const PowerTable& powers, RunListId list) const;
  /// The token of a row, and the stride of its run.
  std::pair<int64_t, int64_t> row_of(const ListSums& sums, int64_t row) const;

  const Plan& plan_;
  PowerTable x_, y_, xy_;
  std::vector<uint64_t> heads_;  // [heads + 1] prefix sums of w
  // Passes, and ranks that exchange heads, share slices of the same rows: the sum of all of them.
  std::map<SharedSlices, uint64_t> slice_sums_;
};

}  // namespace cpscope
