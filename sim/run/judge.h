#pragma once

#include "sim/plan/batch_slots.h"
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

/// Reports progress of long work: done of total units. May be empty.
using Progress = std::function<void(int64_t done, int64_t total)>;

/// What an independent judge needs to grade: the exact answer in double, and the answer of a plain
/// low-precision run whose error is the yardstick.
struct Verdict {
  Answer exact;
  Answer plain;
};

/// An oracle: computes `exact` and `plain` from the inputs with its own reading of the scenario's
/// mask. `num_hops` is the number of partial results that the graded schedule merges (ring steps),
/// for the plain run.
using Judge =
    std::function<Verdict(const Scenario&, const RunInputs&, int32_t num_hops, const Progress&)>;

/// The judge's own count of visible keys and its own visibility predicate, for the probes.
struct MaskWitness {
  /// Is key position j of a sequence visible to query position i of it (both valid positions)?
  std::function<bool(const Scenario&, int64_t sequence, int64_t i, int64_t j)> is_visible;
};

}  // namespace cpscope
