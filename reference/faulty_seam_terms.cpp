#include "reference/faulty_seam.h"

#include <algorithm>

namespace cpscope::reference {
namespace {

/// Numbers places from 0, within the positions that the sequence has.
void number_from_zero(const std::vector<int64_t>& lengths, std::vector<SequencePlace>& places) {
  int64_t next = 0;
  for (SequencePlace& place : places) {
    if (place.sequence >= 0) place.position = next % lengths[static_cast<size_t>(place.sequence)];
    ++next;
  }
}

/// ALiBi measures from positions in the packed buffer instead of the sequence.
void number_through_batch(const BatchSlots& slots, Side side, std::vector<SequencePlace>& places) {
  for (SequencePlace& place : places) {
    if (place.sequence >= 0)
      place.alibi_shift = slots.sequences[static_cast<size_t>(place.sequence)].side(side).begin;
  }
}

}  // namespace

template <class T>
void FaultySeam<T>::alter_places(const ComputeItem& item, Direction, TilePlaces& places) const {
  const Batch& batch = parts_.plan.scenario.batch;
  if (makes(Mistake::alibi_by_tile_row, item.rank, item.step)) {
    number_from_zero(batch.lengths, places.rows);
    number_from_zero(batch.kv_lengths, places.columns);
  }
  if (makes(Mistake::bias_by_tile_column, item.rank, item.step) ||
      makes(Mistake::dropout_by_tile_column, item.rank, item.step))
    number_from_zero(batch.kv_lengths, places.columns);
  if (!makes(Mistake::alibi_across_documents, item.rank, item.step)) return;
  // A distance is not changed by a common offset: the keys' offset is left out, as in a kernel that
  // numbers queries through the batch and keys inside the document.
  number_through_batch(parts_.plan.layout.slots, Side::q, places.rows);
}

template <class T>
void FaultySeam<T>::alter_terms(const ComputeItem& item, Direction direction,
                                TermNumbers& numbers) const {
  const bool is_backward = direction == Direction::backward;
  if (makes(Mistake::terms_by_local_head, item.rank, item.step)) numbers.head -= item.heads.begin;
  if (makes(Mistake::dropout_redrawn, item.rank, item.step) && is_backward) ++numbers.seed_low;
  if (makes(Mistake::dropout_scaled_twice, item.rank, item.step)) numbers.scale *= numbers.scale;
  numbers.sums_kept = makes(Mistake::dropout_before_softmax, item.rank, item.step);
}

template void FaultySeam<float>::alter_places(const ComputeItem&, Direction, TilePlaces&) const;
template void FaultySeam<double>::alter_places(const ComputeItem&, Direction, TilePlaces&) const;
template void FaultySeam<float>::alter_terms(const ComputeItem&, Direction, TermNumbers&) const;
template void FaultySeam<double>::alter_terms(const ComputeItem&, Direction, TermNumbers&) const;

}  // namespace cpscope::reference
