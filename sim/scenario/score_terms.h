#pragma once

#include "sim/scenario/scenario.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cpscope {

/// Cells of a bias, of its gradient for each head and sequence, and of a table of kept weights,
/// that a run may hold: 1 GiB in fp64.
inline constexpr int64_t kMaxBiasCells = int64_t{1} << 27;

/// Extents of the bias: [sequences or 1, heads or 1, longest queries, longest keys], from the valid
/// lengths; all 0 without a bias.
struct BiasExtents {
  int64_t sequences = 0, heads = 0, queries = 0, keys = 0;

  int64_t cells() const { return sequences * heads * queries * keys; }
};
BiasExtents bias_extents(const Attention& attention, const Batch& batch);

/// Why a bias of this batch is too large, or the table of the weights that compute items keep;
/// nothing if it is not. The gradient of a bias is first computed for every head of every sequence.
std::optional<std::string> terms_too_large(const Attention& attention, const Batch& batch);

/// True if every compute item draws the dropped weights for itself.
bool draws_by_item(const Attention& attention);
/// True if anything is added to logits after scale and cap, or weights are dropped.
bool has_score_terms(const Attention& attention);
/// The same scenario without bias, ALiBi and dropout, which probes leave out: with them the weights
/// of visible keys are not equal.
Scenario without_score_terms(Scenario scenario);

/// [head] The slopes of ALiBi (Press et al. 2021, arXiv:2108.12409): 2^(-8k/n) for the n heads of
/// the largest power of two, every second one of 2n heads for the rest.
std::vector<double> alibi_slopes(int32_t heads);

/// What executors need to draw the dropped weights: a weight of (sequence, head, query, key) is
/// kept if its word is below `threshold`. The word is number key mod 4 of philox(counter =
/// {key / 4, query, head, sequence}, key = {seed, seed >> 32}); positions count valid tokens of the
/// sequence.
struct DropoutRule {
  uint32_t seed_low = 0, seed_high = 0;
  uint64_t threshold = 0;
  double scale = 1.0;  // 1 / (1 - dropout), factor of kept weights
};
DropoutRule dropout_rule(const Attention& attention, const Numerics& numerics);

}  // namespace cpscope
