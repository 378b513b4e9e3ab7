#pragma once

#include "sim/clock/clock.h"
#include "sim/clock/trace_match.h"
#include "sim/plan/plan.h"

#include <iosfwd>
#include <span>

namespace cpscope {

/// What is to be said of one plan's times. `measured` is what a record of the same plan holds, or
/// what was found in `traces`, or empty.
struct TimelineExport {
  const Plan& plan;
  const Cluster& cluster;
  const Timeline& timeline;  // with its events
  std::span<const ItemEvent> measured = {};
  const TraceMatch* traces = nullptr;  // of other software; null: none were given
};

/// What `timeline` says: both passes, the critical path, memory, and the ranks (at most 32 of
/// them); with a record or traces also how far the prediction is off (at most 32 steps), and what
/// traces show (trace_text.h).
void write_timeline_text(const TimelineExport& times, std::ostream& out);

/// The document of `timeline --json`: the same, and every item with its times, written one by one.
void write_timeline_json(const TimelineExport& times, std::ostream& out);

}  // namespace cpscope
