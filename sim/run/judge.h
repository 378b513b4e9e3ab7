#pragma once

#include "sim/base/result.h"
#include "sim/plan/batch_slots.h"
#include "sim/run/run_control.h"
#include "sim/run/tensor.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace cpscope {

/// The inputs of one run in packed padded order, as every executor and the judge receive them.
/// Values are already rounded to the scenario's dtype; padding rows may hold NaN.
struct RunInputs {
  BatchSlots slots;
  Tensor q, k, v, d_out;     // d_out is empty when backward is off
  std::vector<double> sink;  // [heads] when softmax_type is learnable, else empty
};

/// The answer of one side. Empty rows and padding rows: out = 0, lse = -inf, gradients 0.
struct Answer {
  Tensor out, lse, dq, dk, dv;
  std::vector<double> max_logit;  // [heads], -inf if nothing is visible
  std::vector<double> d_sink;     // [heads] when softmax_type is learnable
};

/// What an independent judge needs to grade: the exact answer in double, and the answer of a plain
/// low-precision run whose error is the yardstick.
struct Verdict {
  Answer exact;
  Answer plain;
};

/// How many pieces the graded schedule makes of a row's work; the plain run makes as many.
struct Hops {
  int32_t partials = 1;  // partial results merged into the out, and dq, of one query
  int32_t shares = 1;    // shares added up into the dk, dv of one key
};

/// An oracle: computes `exact` and `plain` from the inputs with its own reading of the scenario's
/// mask. The plain run makes as many pieces as the graded schedule. Errors: only that it was
/// cancelled.
using Judge = std::function<Result<Verdict>(const Scenario&, const RunInputs&, const Hops&,
                                            const RunControl&)>;

/// The exact answer for a few rows of a batch that is too long to judge whole: out, lse, dq of the
/// query tokens, dk, dv of the key tokens, in the order asked for. Refuses keys that too many
/// queries see (kind refused); another error says that it was cancelled.
using SampledJudge = std::function<Result<Answer>(
    const Scenario&, const RunInputs&, const std::vector<int64_t>& query_tokens,
    const std::vector<int64_t>& key_tokens, const RunControl&)>;

/// Key positions [begin, end) of one sequence.
struct KeyInterval {
  int64_t begin = 0;
  int64_t end = 0;
};

/// The visible keys of every query position of a sequence, ascending and disjoint: [query
/// position][interval].
using VisibleKeysOfSequence = std::function<std::vector<std::vector<KeyInterval>>(int64_t)>;

/// The judge's own reading of the mask, for the probes.
struct MaskWitness {
  /// Reads the mask of a scenario once and then answers for one sequence after the other.
  std::function<VisibleKeysOfSequence(const Scenario&)> visible_keys;
  /// Is key position j of a sequence visible to query position i of it (both valid positions)?
  std::function<bool(const Scenario&, int64_t sequence, int64_t i, int64_t j)> is_visible;
};

}  // namespace cpscope
