#include "sim/scenario/score_terms.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace cpscope {

BiasExtents bias_extents(const Attention& attention, const Batch& batch) {
  if (attention.bias == BiasShape::none || batch.lengths.empty()) return {};
  const bool is_of_sequences =
      attention.bias == BiasShape::b_one || attention.bias == BiasShape::b_h;
  const bool is_of_heads = attention.bias == BiasShape::one_h || attention.bias == BiasShape::b_h;
  return {is_of_sequences ? static_cast<int64_t>(batch.lengths.size()) : 1,
          is_of_heads ? attention.heads : 1,
          *std::max_element(batch.lengths.begin(), batch.lengths.end()),
          *std::max_element(batch.kv_lengths.begin(), batch.kv_lengths.end())};
}

std::optional<std::string> terms_too_large(const Attention& attention, const Batch& batch) {
  const BiasExtents extents = bias_extents(attention, batch);
  double pairs = 0;
  for (size_t sequence = 0; sequence < batch.lengths.size(); ++sequence)
    pairs += static_cast<double>(batch.lengths[sequence]) *
             static_cast<double>(batch.kv_lengths[sequence]);
  const double cells =
      std::max(static_cast<double>(extents.sequences) * static_cast<double>(extents.heads) *
                   static_cast<double>(extents.queries) * static_cast<double>(extents.keys),
               pairs * attention.heads);
  const bool has_cells = extents.heads > 0 || draws_by_item(attention);
  if (!has_cells || cells <= static_cast<double>(kMaxBiasCells)) return std::nullopt;
  return fmt::format("{} of {:.3g} cells is more than a run holds: {}",
                     extents.heads > 0 ? "a bias" : "a table of kept weights", cells,
                     kMaxBiasCells);
}

bool draws_by_item(const Attention& attention) {
  return attention.dropout > 0 && attention.dropout_mode == DropoutMode::framework;
}

bool has_score_terms(const Attention& attention) {
  return attention.alibi || attention.bias != BiasShape::none || attention.dropout > 0;
}

Scenario without_score_terms(Scenario scenario) {
  scenario.attention.alibi = false;
  scenario.attention.bias = BiasShape::none;
  scenario.attention.dropout = 0.0;
  return scenario;
}

std::vector<double> alibi_slopes(int32_t heads) {
  int32_t power = 1;
  while (power * 2 <= heads) power *= 2;
  std::vector<double> slopes;
  for (int32_t head = 0; head < heads; ++head) {
    const double steps = head < power ? head + 1 : head - power + 0.5;
    slopes.push_back(std::exp2(-8.0 * steps / power));
  }
  return slopes;
}

DropoutRule dropout_rule(const Attention& attention, const Numerics& numerics) {
  const double kept = 1.0 - attention.dropout;
  return {static_cast<uint32_t>(numerics.seed), static_cast<uint32_t>(numerics.seed >> 32),
          static_cast<uint64_t>(std::ceil(kept * 4294967296.0)), 1.0 / kept};
}

}  // namespace cpscope
