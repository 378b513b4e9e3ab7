#pragma once

#include "reference/mask_predicate.h"
#include "reference/rotary_table.h"
#include "sim/run/judge.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <vector>

namespace cpscope::reference {

/// One unit of the oracle's work: all query heads that read one kv head, in one sequence. Units
/// touch disjoint rows of the answer, so they may run at once.
struct HeadGroup {
  const Scenario& scenario;
  const RunInputs& inputs;
  const VisibleKeys& visible;  // of this sequence
  const RotaryTable& rotary;   // of this sequence's positions
  int64_t sequence = 0;
  int32_t kv_head = 0;
  Hops hops;        // pieces of the plain run
  RunWatch& watch;  // asked between blocks of rows; a cancelled unit leaves out the rest

  const SequenceSlot& slot() const { return inputs.slots.sequences[static_cast<size_t>(sequence)]; }
  int32_t heads_per_group() const { return scenario.attention.heads / scenario.attention.kv_heads; }
};

/// What one unit contributes to the per-head numbers of the whole batch.
struct HeadSums {
  double max_logit;     // -inf if the head sees nothing in this sequence
  double d_sink = 0.0;  // gradient of the sink logit from this sequence's rows
};

/// A value outside every visible set: -inf.
double no_logit();

/// The factor of q.k, from the contract: softmax_scale, or 1/sqrt(head_dim_qk) when that is 0.
double logit_scale(const Attention& attention);

/// The sink logit of a head; only for softmax types that have one.
double sink_logit(const Attention& attention, const std::vector<double>& learnable, int32_t head);

/// The exact attention of one unit in double, written into `answer`. Returns the sums of the
/// group's heads, in order. Error: about 1e-15 relative (tests/reference/dense_oracle_test.cpp).
std::vector<HeadSums> compute_exact_group(const HeadGroup& group, Answer& answer);

/// The plain low-precision attention of one unit: fp32 arithmetic (fp64 when the dtype is) with the
/// roundings of dtype, dkv_wire and accumulate, in as many hops in natural order.
std::vector<HeadSums> compute_plain_group(const HeadGroup& group, Answer& answer);

}  // namespace cpscope::reference
