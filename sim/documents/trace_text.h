#pragma once

#include "sim/documents/timeline_text.h"
#include "sim/documents/json_text.h"
#include "sim/plan/item_event.h"

#include <iosfwd>
#include <vector>

namespace cpscope {

/// The predicted events that traces could show: computes and messages of ranks that have a trace.
std::vector<ItemEvent> comparable_events(const TimelineExport& times);

/// What was measured by other software: which layer, then for each pass the ranks (at most 32) and
/// the steps (at most 32), what is missing, and what is not in the plan (at most 16 lines).
void write_match_text(const TimelineExport& times, std::ostream& out);

/// Adds the same, of all ranks, steps and items, to the member `measured` of timeline --json.
void add_match_json(const TimelineExport& times, Json& measured);

}  // namespace cpscope
