#include "kernels/run/term_store.h"

#include "sim/scenario/score_terms.h"

#include <string>
#include <utility>

namespace cpscope::kernels {
namespace {

template <class To, class From>
std::vector<To> as(const std::vector<From>& values) {
  std::vector<To> converted;
  converted.reserve(values.size());
  for (const From& value : values) converted.push_back(static_cast<To>(value));
  return converted;
}

template <class T>
int64_t bytes_of(const std::vector<T>& values) {
  return static_cast<int64_t>(values.size() * sizeof(T));
}

}  // namespace

std::vector<PositionStretch> stretches_of(const std::vector<float>& positions) {
  const auto rows = static_cast<int32_t>(positions.size());
  std::vector<PositionStretch> stretches(positions.size(), {0.0f, rows});
  for (int32_t row = rows - 2; row >= 0; --row) {
    const auto at = static_cast<size_t>(row);
    const float step = positions[at + 1] - positions[at];
    const bool goes_on = row + 2 < rows && stretches[at + 1].step == step;
    stretches[at] = {step, goes_on ? stretches[at + 1].end : row + 2};
  }
  return stretches;
}

TermStore::TermStore(const Plan& plan, RankArrays& arrays)
    : plan_(plan),
      arrays_(arrays),
      is_on_(has_score_terms(plan.scenario.attention)),
      has_places_(plan.scenario.attention.bias != BiasShape::none ||
                  plan.scenario.attention.dropout > 0) {
  if (!is_on_) return;
  const Attention& attention = plan.scenario.attention;
  const Batch& batch = plan.scenario.batch;
  const auto sequences = static_cast<int64_t>(batch.lengths.size());
  const auto reserve = [&](const char* name, int64_t count, size_t size) {
    return arrays_.reserve(name, count * static_cast<int64_t>(size));
  };
  if (attention.alibi) slopes_ = reserve("ALiBi slopes", attention.heads, sizeof(float));
  const bool has_bias = attention.bias != BiasShape::none;
  const bool has_dbias = has_bias && plan.scenario.numerics.backward;
  if (has_dbias || draws_by_item(attention)) {
    cell_begins_.push_back(0);
    for (size_t sequence = 0; sequence < batch.lengths.size(); ++sequence)
      cell_begins_.push_back(cell_begins_.back() + attention.heads * batch.lengths[sequence] *
                                                       batch.kv_lengths[sequence]);
    first_cells_ = reserve("cells of sequences", sequences + 1, sizeof(int64_t));
    lengths_ = reserve("lengths", sequences, sizeof(int32_t));
    kv_lengths_ = reserve("kv lengths", sequences, sizeof(int32_t));
  }
  if (has_bias) bias_ = reserve("bias", bias_extents(attention, batch).cells(), sizeof(float));
  if (has_dbias) dbias_ = reserve("dbias", cell_begins_.back(), sizeof(float));
  if (draws_by_item(attention))
    kept_ = reserve("kept weights", cell_begins_.back(), sizeof(uint8_t));
  for (const Direction direction : kDirections) {
    for (const ComputeItem& item : plan.pass(direction).computes) {
      if (item.num_slices == 0 || !arrays_.is_here(item.rank)) continue;
      plan_list(item.q_tokens, Side::q);
      plan_list(item.kv_tokens, Side::kv);
    }
  }
}

void TermStore::plan_list(RunListId tokens, Side side) {
  const bool is_new =
      lists_.try_emplace(std::pair{to_index(tokens), static_cast<int32_t>(side)}).second;
  if (!is_new) return;
  const int64_t rows = plan_.rows(tokens);
  if (has_places_) list_bytes_ += rows * static_cast<int64_t>(sizeof(TermPlace));
  if (slopes_ >= 0)
    list_bytes_ += (rows + AlibiRows::kPositionPadding) * static_cast<int64_t>(sizeof(float)) +
                   (side == Side::kv ? rows * static_cast<int64_t>(sizeof(PositionStretch)) : 0);
}

TermStore::TermList TermStore::list_on_device(RunListId tokens, Side side, Stream stream) const {
  std::vector<TermPlace> all(static_cast<size_t>(plan_.layout.slots.tokens_of(side)));
  const std::vector<SequenceSlot>& sequences = plan_.layout.slots.sequences;
  for (size_t sequence = 0; sequence < sequences.size(); ++sequence) {
    const SlotSide ids = sequences[sequence].side(side);
    for (int64_t i = 0; i < ids.valid; ++i)
      all[static_cast<size_t>(ids.valid_begin() + i)] = {static_cast<int32_t>(sequence),
                                                         static_cast<int32_t>(i)};
  }
  std::vector<TermPlace> places;
  for (const TokenRun& run : plan_.list(tokens)) {
    for (int64_t token = run.begin; token < run.end; token += run.stride)
      places.push_back(all[static_cast<size_t>(token)]);
  }
  TermList list;
  if (has_places_) list.places = to_device(places, stream);
  std::vector<float> positions;
  std::vector<PositionStretch> stretches;
  if (slopes_ >= 0) {
    const Batch& batch = plan_.scenario.batch;
    for (const TermPlace& place : places) {
      const auto sequence = static_cast<size_t>(place.sequence);
      const int64_t excess = side == Side::kv || place.sequence < 0
                                 ? 0
                                 : batch.kv_lengths[sequence] - batch.lengths[sequence];
      positions.push_back(static_cast<float>(place.position + excess));
    }
    if (side == Side::kv) {
      stretches = stretches_of(positions);
      list.stretches = to_device(stretches, stream);
    }
    positions.resize(positions.size() + AlibiRows::kPositionPadding, 0.0f);
    list.positions = to_device(positions, stream);
  }
  wait_for_stream(stream);  // before the vectors are freed
  return list;
}

void TermStore::load(const RunInputs& inputs, Stream stream) {
  if (!is_on_) return;
  const Attention& attention = plan_.scenario.attention;
  const Batch& batch = plan_.scenario.batch;
  const auto put = [&](int32_t array, const auto& values) {
    if (array >= 0 && !values.empty())
      copy_to_device(arrays_.at(array), values.data(), bytes_of(values), stream);
  };
  const auto slopes = as<float>(alibi_slopes(attention.heads));
  const auto bias = as<float>(inputs.bias.values);
  const auto lengths = as<int32_t>(batch.lengths), kv_lengths = as<int32_t>(batch.kv_lengths);
  put(slopes_, slopes);
  put(bias_, bias);
  put(lengths_, lengths);
  put(kv_lengths_, kv_lengths);
  put(first_cells_, cell_begins_);
  put(kept_, inputs.kept.is_kept);
  for (auto& [key, list] : lists_)
    list = list_on_device(RunListId{key.first}, static_cast<Side>(key.second), stream);
  wait_for_stream(stream);  // before the vectors are freed
}

void TermStore::clear_gradient(Stream stream) {
  if (dbias_ < 0) return;
  fill_bytes(arrays_.at(dbias_), 0, cell_begins_.back() * static_cast<int64_t>(sizeof(float)),
             stream);
  wait_for_stream(stream);
}

ScoreTermRows TermStore::of(const ComputeItem& item) const {
  const Attention& attention = plan_.scenario.attention;
  ScoreTermRows rows;
  const auto list_of = [&](RunListId tokens, Side side) -> const TermList& {
    return lists_.at({to_index(tokens), static_cast<int32_t>(side)});
  };
  const TermList &queries = list_of(item.q_tokens, Side::q),
                 &keys = list_of(item.kv_tokens, Side::kv);
  if (has_places_) {
    rows.q_places = queries.places.as<TermPlace>();
    rows.kv_places = keys.places.as<TermPlace>();
  }
  if (slopes_ >= 0) {
    rows.alibi = {arrays_.at<float>(slopes_), queries.positions.as<float>(),
                  keys.positions.as<float>(), keys.stretches.as<PositionStretch>()};
  }
  if (bias_ >= 0) {
    const BiasExtents extents = bias_extents(attention, plan_.scenario.batch);
    rows.bias = arrays_.at<float>(bias_);
    rows.bias_sequences = static_cast<int32_t>(extents.sequences);
    rows.bias_heads = static_cast<int32_t>(extents.heads);
    rows.bias_queries = static_cast<int32_t>(extents.queries);
    rows.bias_keys = static_cast<int32_t>(extents.keys);
  }
  if (first_cells_ >= 0) {
    rows.first_cells = arrays_.at<int64_t>(first_cells_);
    rows.lengths = arrays_.at<int32_t>(lengths_);
    rows.kv_lengths = arrays_.at<int32_t>(kv_lengths_);
  }
  if (dbias_ >= 0) rows.dbias = arrays_.at<float>(dbias_);
  if (kept_ >= 0) rows.kept = arrays_.at<uint8_t>(kept_);
  if (attention.dropout > 0) {
    const DropoutRule rule = dropout_rule(attention, plan_.scenario.numerics);
    rows.threshold = rule.threshold;
    rows.seed_low = rule.seed_low;
    rows.seed_high = rule.seed_high;
    rows.kept_scale = static_cast<float>(rule.scale);
  }
  return rows;
}

void TermStore::collect(Answer& answer, Stream stream) const {
  if (dbias_ < 0) return;
  const Attention& attention = plan_.scenario.attention;
  const Batch& batch = plan_.scenario.batch;
  const BiasExtents extents = bias_extents(attention, batch);
  std::vector<float> cells(static_cast<size_t>(cell_begins_.back()));
  if (!cells.empty()) copy_to_host(cells.data(), arrays_.at(dbias_), bytes_of(cells), stream);
  wait_for_stream(stream);
  if (answer.dbias.values.empty())
    answer.dbias = make_filled_tensor(
        "dbias", {extents.sequences, extents.heads, extents.queries, extents.keys}, Dtype::fp32,
        0.0);
  for (size_t sequence = 0; sequence < batch.lengths.size(); ++sequence) {
    const int64_t queries = batch.lengths[sequence], keys = batch.kv_lengths[sequence];
    for (int64_t row = 0; row < attention.heads * queries; ++row) {
      const int64_t head = row / queries, query = row % queries;
      const int64_t plane = (static_cast<int64_t>(sequence) % extents.sequences) * extents.heads +
                            head % extents.heads;
      const float* from = cells.data() + cell_begins_[sequence] + row * keys;
      double* into = answer.dbias.values.data() + (plane * extents.queries + query) * extents.keys;
      for (int64_t key = 0; key < keys; ++key) into[key] += static_cast<double>(from[key]);
    }
  }
}

}  // namespace cpscope::kernels
