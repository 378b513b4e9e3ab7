#pragma once

#include "sim/run/judge.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <optional>

namespace cpscope::reference {

/// The oracle's view of a scenario: where latent rows are expanded (latent_nope_dim), that of the
/// ordinary attention with the keys and values of every head (key_rows.h); else the scenario
/// itself. Source: DeepSeek-V2 (arXiv:2405.04434), equations 9 to 19.
class LatentHeads {
 public:
  /// Both arguments are to outlive it.
  LatentHeads(const Scenario& asked, const RunInputs& given);

  const Scenario& scenario() const { return scenario_ ? *scenario_ : asked_; }

  /// Replaces the gradients of the heads' keys and values by that of the latent rows, and the
  /// lengths of their terms, unless `terms` is null. A plain answer is rounded to the dtype.
  void contract(bool is_plain, Answer& answer, TermLengths* terms) const;

 private:
  Tensor gradient_of_rows(bool is_plain, const Answer& answer) const;
  void join_terms(TermLengths& terms) const;

  const Scenario& asked_;
  const RunInputs& given_;
  std::optional<Scenario> scenario_;
};

/// The same inputs with k [tokens, heads, head_dim_qk] and v [tokens, heads, head_dim_v] in place
/// of latent rows, in fp64, without weights.
RunInputs expand_rows(const RunInputs& given);

/// Adds to the gradient of a latent row that of one head's k [head_dim_qk] and v [head_dim_v].
void add_head_gradients(const RunInputs& inputs, int32_t head, const double* dk, const double* dv,
                        double* row);

}  // namespace cpscope::reference
