#pragma once

#include "sim/base/ids.h"
#include "sim/base/result.h"
#include "sim/clock/foreign_trace.h"
#include "sim/plan/plan.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cpscope {

/// A file of `--measured`: FILE, or RANK=FILE for a trace that does not say its rank.
struct TraceSource {
  std::string path;
  std::optional<int64_t> rank = {};
};
/// Splits "3=trace.json". A file whose own name begins so is written ./3=trace.json.
TraceSource parse_trace_source(const std::string& text);
std::vector<TraceSource> trace_sources(const std::vector<std::string>& texts);

/// What one step of one rank took.
struct StepFigures {
  StepId step{};
  double attention_us = 0;  // a kernel of the step runs
  double transfer_us = 0;   // a transfer of the step runs
  double exposed_us = 0;    // of that: no attention of the rank runs
  double gap_us = 0;        // from the attention before (at first: the begin) to the step's own
};

/// Times of one rank in one pass of the layer that was taken; the first four sum to total_us, as in
/// RankTimes. `exposed_us`: a transfer runs, also one that the plan does not have, and no
/// attention.
struct PassFigures {
  double total_us = 0;  // from the first begin of an item to the last end of one
  double attention_us = 0, exposed_us = 0, other_us = 0, idle_us = 0;
  double transfer_us = 0;  // hidden or not
  std::vector<StepFigures> steps;
  int64_t missing_computes = 0, missing_transfers = 0;  // items that the trace does not show
  int64_t unknown_transfers = 0;                        // items that may be any of several spans
};

struct RankMeasured {
  RankId rank{};
  PassFigures forward, backward;

  const PassFigures& pass(Direction direction) const {
    return direction == Direction::backward ? backward : forward;
  }
  PassFigures& pass(Direction direction) {
    return direction == Direction::backward ? backward : forward;
  }
};

/// Spans of one name and size that are no item of the plan, between the attention before the layer
/// and the attention behind it. `is_unknown`: they may be, but which cannot be told.
struct StrangeSpans {
  std::string name;
  TraceWork work{};
  int64_t bytes = -1;  // of one of them, as the plan counts; -1: the trace does not say
  int64_t count = 0;   // over all ranks
  double us = 0;       // in all
  bool is_unknown = false;
};

/// Traces laid beside a plan.
struct TraceMatch {
  /// Computes and transfers of the plan that were found; the forward begins at 0, the backward
  /// where the forward ends.
  std::vector<ItemEvent> events;
  std::vector<RankMeasured> ranks;    // those that have a trace, ascending
  std::vector<StrangeSpans> strange;  // longest first
  int64_t layers = 1, layer = 0;      // repetitions of the plan in the traces, and which was taken
  bool has_layer_choice = false;      // the layer was asked for
  std::vector<std::string> notes;     // what a reader must know of how it was found
  std::string source;                 // "2 Kineto traces"

  const RankMeasured* find(RankId rank) const;
};

/// Reads traces of a run of this plan and finds its items in them. Attention kernels are the steps
/// of a rank in order; transfers are found by kind and bytes (trace_align.h); what is ambiguous is
/// unknown. If the plan was repeated, in layers or iterations, `layer` (from 0) says which one is
/// taken; otherwise that of median duration. A trace of cpscope itself must be of this plan.
/// Errors: as read_foreign_trace; bad_input: ranks that are not clear or come twice, another plan's
/// trace, no such layer, ranks with different numbers of layers.
Result<TraceMatch> match_traces(const Plan& plan, const std::vector<TraceSource>& sources,
                                std::optional<int64_t> layer = std::nullopt);

}  // namespace cpscope
