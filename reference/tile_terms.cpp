#include "reference/tile_terms.h"

#include "sim/run/dtype.h"
#include "sim/run/philox.h"

#include <array>
#include <cstdlib>
#include <functional>

namespace cpscope::reference {
namespace {

std::vector<SequencePlace> sequence_places(const BatchSlots& slots, Side side) {
  std::vector<SequencePlace> places(static_cast<size_t>(slots.tokens_of(side)));
  for (size_t sequence = 0; sequence < slots.sequences.size(); ++sequence) {
    const SlotSide ids = slots.sequences[sequence].side(side);
    for (int64_t position = 0; position < ids.valid; ++position)
      places[static_cast<size_t>(ids.valid_begin() + position)] = {static_cast<int32_t>(sequence),
                                                                   position};
  }
  return places;
}

std::vector<SequencePlace> places_in(const Plan& plan, RunListId tokens,
                                     const std::vector<SequencePlace>& all) {
  std::vector<SequencePlace> places;
  places.reserve(static_cast<size_t>(plan.rows(tokens)));
  for (const TokenRun& run : plan.list(tokens)) {
    for (int64_t token = run.begin; token < run.end; token += run.stride)
      places.push_back(all[static_cast<size_t>(token)]);
  }
  return places;
}

}  // namespace

ScoreTerms::ScoreTerms(const Plan& plan, const RunInputs& inputs)
    : plan_(plan), attention_(plan.scenario.attention), bias_(inputs.bias), kept_(inputs.kept) {
  if (!is_on()) return;
  const Batch& batch = plan.scenario.batch;
  dropout_ = dropout_rule(attention_, plan.scenario.numerics);
  slopes_ = alibi_slopes(attention_.heads);
  q_places_ = sequence_places(plan.layout.slots, Side::q);
  kv_places_ = sequence_places(plan.layout.slots, Side::kv);
  first_cells_.push_back(0);
  for (size_t sequence = 0; sequence < batch.lengths.size(); ++sequence) {
    excess_.push_back(batch.kv_lengths[sequence] - batch.lengths[sequence]);
    first_cells_.push_back(first_cells_.back() +
                           attention_.heads * batch.lengths[sequence] * batch.kv_lengths[sequence]);
  }
}

TilePlaces ScoreTerms::places_of(RunListId q_tokens, RunListId kv_tokens) const {
  return {places_in(plan_, q_tokens, q_places_), places_in(plan_, kv_tokens, kv_places_)};
}

TermNumbers ScoreTerms::numbers_of(const ComputeItem& item, int32_t head) const {
  const std::vector<ComputeItem>& items = plan_.forward.computes;
  const std::less<const ComputeItem*> is_before;
  const bool is_of_forward =
      !is_before(&item, items.data()) && is_before(&item, items.data() + items.size());
  return {.head = head,
          .seed_low = dropout_.seed_low,
          .scale = dropout_.scale,
          .item = is_of_forward ? &item - items.data() : -1,
          .first_head = item.heads.begin};
}

const double* ScoreTerms::bias_row(int32_t sequence, int32_t head, int64_t query) const {
  const std::vector<int64_t>& shape = bias_.shape;
  const int64_t plane = (sequence % shape[0]) * shape[1] + head % shape[1];
  return bias_.values.data() + (plane * shape[2] + query) * shape[3];
}

int64_t ScoreTerms::first_cell(int32_t sequence, int32_t head, int64_t query) const {
  const Batch& batch = plan_.scenario.batch;
  const auto at = static_cast<size_t>(sequence);
  return first_cells_[at] + (head * batch.lengths[at] + query) * batch.kv_lengths[at];
}

template <class T>
Tensor ScoreTerms::sum_cells(const AlignedVector<T>& cells) const {
  const Batch& batch = plan_.scenario.batch;
  const Dtype dtype = plan_.scenario.numerics.dtype;
  const BiasExtents extents = bias_extents(attention_, batch);
  Tensor dbias = make_filled_tensor(
      "dbias", {extents.sequences, extents.heads, extents.queries, extents.keys}, dtype, 0.0);
  std::vector<T> sums(dbias.values.size(), T(0));
  for (size_t sequence = 0; sequence < batch.lengths.size(); ++sequence) {
    const auto number = static_cast<int32_t>(sequence);
    for (int32_t head = 0; head < attention_.heads; ++head) {
      const int64_t plane = (number % extents.sequences) * extents.heads + head % extents.heads;
      for (int64_t query = 0; query < batch.lengths[sequence]; ++query) {
        const T* from = cells.data() + first_cell(number, head, query);
        T* into = sums.data() + (plane * extents.queries + query) * extents.keys;
        for (int64_t key = 0; key < batch.kv_lengths[sequence]; ++key) into[key] += from[key];
      }
    }
  }
  dbias.values.assign(sums.begin(), sums.end());
  round_values(dtype, dbias.values);
  return dbias;
}

template <class T>
void TileTerms<T>::add(int64_t row, int64_t first_column, T* logits, int64_t count) const {
  if (!terms_.adds()) return;
  const SequencePlace& query = places_.rows[static_cast<size_t>(row)];
  if (query.sequence < 0) return;
  const int64_t diagonal = query.position + query.alibi_shift + terms_.excess_keys(query.sequence);
  const T slope = static_cast<T>(terms_.slope(numbers_.head));
  const double* bias =
      terms_.has_bias() ? terms_.bias_row(query.sequence, numbers_.head, query.position) : nullptr;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t key = places_.columns[static_cast<size_t>(first_column + i)].position;
    T added = bias == nullptr ? T(0) : static_cast<T>(bias[key]);
    if (terms_.has_alibi()) added -= slope * static_cast<T>(std::abs(diagonal - key));
    logits[i] += added;
  }
}

template <class T>
void TileTerms<T>::drop(int64_t row, int64_t first_column, T* weights, int64_t count, T kept,
                        T dropped) const {
  if (terms_.draws_by_item()) return drop_by_item(row, first_column, weights, count, kept, dropped);
  const SequencePlace& query = places_.rows[static_cast<size_t>(row)];
  const DropoutRule& rule = terms_.dropout();
  std::array<uint32_t, 4> words{};
  int64_t drawn = -1;  // the four keys that `words` are of
  for (int64_t i = 0; i < count; ++i) {
    const int64_t key = places_.columns[static_cast<size_t>(first_column + i)].position;
    if (key / 4 != drawn) {
      drawn = key / 4;
      words = philox({static_cast<uint32_t>(drawn), static_cast<uint32_t>(query.position),
                      static_cast<uint32_t>(numbers_.head), static_cast<uint32_t>(query.sequence)},
                     {numbers_.seed_low, rule.seed_high});
    }
    weights[i] *= words[static_cast<size_t>(key % 4)] < rule.threshold ? kept : dropped;
  }
}

template <class T>
void TileTerms<T>::drop_by_item(int64_t row, int64_t first_column, T* weights, int64_t count,
                                T kept, T dropped) const {
  const bool is_forward = numbers_.item >= 0;
  const SequencePlace& query = places_.rows[static_cast<size_t>(row)];
  if (query.sequence < 0) return;
  const DropoutRule& rule = terms_.dropout();
  for (int64_t column = first_column; column < first_column + count; ++column) {
    bool is_kept = false;
    if (is_forward) {
      const std::array<uint32_t, 4> words =
          philox({static_cast<uint32_t>(column / 4), static_cast<uint32_t>(row),
                  static_cast<uint32_t>(numbers_.head - numbers_.first_head),
                  static_cast<uint32_t>(numbers_.item)},
                 {numbers_.seed_low, rule.seed_high});
      is_kept = words[static_cast<size_t>(column % 4)] < rule.threshold;
    } else {
      is_kept = terms_.kept().holds(query.sequence, numbers_.head, query.position,
                                    places_.columns[static_cast<size_t>(column)].position);
    }
    weights[column - first_column] *= is_kept ? kept : dropped;
  }
}

template <class T>
void TileTerms<T>::add_dbias(int64_t row, int64_t first_column, const T* gradient,
                             int64_t count) const {
  const SequencePlace& query = places_.rows[static_cast<size_t>(row)];
  if (query.sequence < 0) return;
  T* into = dbias_.data() + terms_.first_cell(query.sequence, numbers_.head, query.position);
  for (int64_t i = 0; i < count; ++i)
    into[places_.columns[static_cast<size_t>(first_column + i)].position] += gradient[i];
}

template class TileTerms<float>;
template class TileTerms<double>;
template Tensor ScoreTerms::sum_cells<float>(const AlignedVector<float>&) const;
template Tensor ScoreTerms::sum_cells<double>(const AlignedVector<double>&) const;

}  // namespace cpscope::reference
