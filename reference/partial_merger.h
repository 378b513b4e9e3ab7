#pragma once

#include "reference/rank_memory.h"
#include "sim/base/id_vector.h"

#include <cstdint>
#include <span>
#include <vector>

namespace cpscope::reference {

/// Adds partial results to accumulators and turns them into answers, with every rounding that the
/// scenario requires. Items with different accumulators may run at the same time.
///
/// accumulate = fp32: (o, lse) are merged one after another, by log-sum-exp. accumulate = dtype
/// with a 16-bit dtype: TransformerEngine's two phases (before 2.20); partials are stored, first
/// all lse are merged, then every o is added, weighted with the final lse and rounded, in step
/// order; a sum that another rank will merge goes through the second phase when it is sent.
template <class T>
class PartialMerger {
 public:
  /// `sink` is [heads] or empty.
  PartialMerger(const Plan& plan, std::span<const double> sink, RankMemory<T>& memory);

  void merge(const MergeItem& item);
  void finish(const FinishItem& item);
  /// Call before the rows of a buffer are sent as a partial result.
  void settle(BufferId id);

  /// The logit that is added to every row's sum: the learned one, else 0.
  T sink_of(int32_t head) const;
  /// True if partials are rounded to the dtype before they are merged.
  bool keeps_partials() const { return keeps_partials_; }

 private:
  void merge_sum(const MergeItem& item, AlignedVector<T> BufferMemory<T>::*array);
  void merge_sum_of_heads(const MergeItem& item, AlignedVector<T> BufferMemory<T>::*array);
  void add_to_sum(std::span<T> into, std::span<const T> partial, bool is_first) const;
  void merge_out(const MergeItem& item);
  void merge_lse(const MergeItem& item);
  std::vector<int64_t> cells_of(const MergeItem& item) const;
  void sum_kept_partials(BufferId id);
  void add_sink(const BufferSpec& spec, BufferMemory<T>& memory) const;

  const Plan& plan_;
  std::span<const double> sink_;
  RankMemory<T>& memory_;
  bool keeps_partials_ = false;
  struct Kept {
    BufferMemory<T> partial;
    std::vector<int64_t> cells;  // of the accumulator, one for each of the partial
  };
  IdVector<BufferId, std::vector<Kept>> kept_;  // of accumulators: [merge]
};

}  // namespace cpscope::reference
