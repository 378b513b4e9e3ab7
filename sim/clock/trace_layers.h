#pragma once

#include "sim/clock/trace_ranks.h"
#include "sim/plan/direction.h"
#include "sim/plan/plan.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace cpscope {

/// One attention call of a rank: a kernel with its helpers.
struct AttentionCall {
  TimeStretch time;
  std::vector<size_t> spans;  // of the rank
};

/// The calls of one pass of one layer: [first, end) of the calls in this direction.
struct LayerPass {
  Direction direction{};
  size_t first = 0, end = 0;
  TimeStretch time;
  TimeStretch first_call, last_call;
};

/// A forward and the backward that belongs to it, as places in RankLayers::passes; -1: not in the
/// trace.
struct TraceLayer {
  int64_t forward = -1, backward = -1;
};

/// What one rank sends in one stage of a pass, and brings home in it.
struct StageShare {
  StepId step{};
  int64_t sent = 0, received = 0;  // bytes; at least one of them is above 0
  bool adds = false;               // shares that are added where they arrive
  std::vector<int64_t> items;      // transfers that the rank sends
};
std::vector<StageShare> stage_shares(const Plan& plan, Direction direction, RankId rank);

/// Compute items of the rank with anything to compute, in plan order.
std::vector<int64_t> busy_computes(const Plan& plan, Direction direction, RankId rank);

/// Can this span be a message of the plan that its rank sends? A collective cannot whose
/// communicator has other ranks than the plan or a part of it.
bool can_be_message(const TraceSpan& span, const Plan& plan);

/// The attention calls of a rank's trace, cut into repetitions of the plan's steps.
struct RankLayers {
  ByDirection<std::vector<AttentionCall>> calls;
  ByDirection<int64_t> calls_per_compute{1, 1};
  std::vector<LayerPass> passes;   // by time
  std::vector<TraceLayer> layers;  // by forward; a forward that was computed again counts once
  int64_t recomputed = 0;  // forwards without a backward of their own, where others have one
  std::string fault;       // why it could not be cut
  // The bytes of all messages are those of so many layers. If not, the fewest attention calls for a
  // compute item were taken that divide what there is.
  bool is_confirmed = false;
};

/// A backward belongs to the last forward before it that has none yet. Several kernels for a
/// compute item are recognised by the bytes that were sent meanwhile.
RankLayers find_layers(const Plan& plan, const RankTrace& trace);

}  // namespace cpscope
