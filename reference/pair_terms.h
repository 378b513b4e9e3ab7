#pragma once

#include "sim/run/judge.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <vector>

namespace cpscope::reference {

/// The oracle's own reading of bias, ALiBi and dropout, for one pair at a time. Positions count the
/// valid tokens of the sequence.
class PairTerms {
 public:
  /// Refers to the inputs, which must hold the bias if the scenario has one.
  PairTerms(const Scenario& scenario, const RunInputs& inputs);

  /// True if anything is added to logits.
  bool adds() const { return attention_.alibi || has_bias(); }
  bool has_bias() const { return attention_.bias != BiasShape::none; }
  bool drops() const { return attention_.dropout > 0; }

  /// What is added to the logit, after scale and cap.
  double added(int64_t sequence, int32_t head, int64_t query, int64_t key) const;
  /// Factor of a weight after the softmax: 0 if it is dropped, 1/(1 - dropout) if it is kept.
  double factor(int64_t sequence, int32_t head, int64_t query, int64_t key) const;

  /// Cell of the bias, and of dbias, that a pair reads: an index into its values.
  size_t cell(int64_t sequence, int32_t head, int64_t query, int64_t key) const;

 private:
  const Attention& attention_;
  const Batch& batch_;
  const Tensor& bias_;
  const KeptWeights& kept_;
  const uint64_t seed_;
  std::vector<double> slopes_;  // [head]
};

/// Slope of ALiBi for one head of `heads`.
double slope_of_head(int32_t heads, int32_t head);

}  // namespace cpscope::reference
