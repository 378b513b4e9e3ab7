#pragma once

#include "sim/documents/timeline_text.h"

#include <iosfwd>
#include <span>
#include <string>

namespace cpscope {

/// From a transfer to the first item of its receiver that works with what has arrived, or to the
/// first that sends it on. Places in the list of events.
struct Arrival {
  int64_t sent = 0, read = 0;
  bool is_sent_on = false;
};

/// Where the rows of every transfer between two ranks are read, by `read`; up to two for each.
/// Events of items that the plan has, in any order; an item's first event counts.
std::vector<Arrival> find_arrivals(const Plan& plan, std::span<const ItemEvent> events);

/// Chrome's trace event format, as ui.perfetto.dev and chrome://tracing open it: a process for each
/// rank, threads `compute` (computes, merges, reorders, finishes) and `transfer`, one complete
/// event (ph X) an item, a flow (s, f) for each arrival, and a counter of the bytes that the rank
/// is sending. What overlaps stands on threads of its own, `transfer 2` and so on, from 16 on
/// nested. Times in us with three decimals. Measured ranks are a second group of processes. Written
/// event by event; 40 bytes of memory each. Source: "Trace Event Format", Google, 2016.
void write_timeline_trace(const TimelineExport& times, std::ostream& out);

/// The same of measured items alone. `who` measured them: "executor nccl, sm90".
void write_measured_trace(const Plan& plan, std::span<const ItemEvent> events,
                          const std::string& who, std::ostream& out);

/// A row for each item that takes time, in plan order: pass, kind, index, rank (of a transfer, the
/// sender), step, start_us, end_us, bytes on the wire, pairs (query, key, query head), to (receiver
/// of a transfer); with a record also measured_start_us and measured_end_us.
void write_timeline_csv(const TimelineExport& times, std::ostream& out);

}  // namespace cpscope
