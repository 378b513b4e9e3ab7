#pragma once

// Private to the search for causes: rows put together from the parts of several ranks, rightly or
// with a mistake.

#include "sim/run/grade/suspects.h"
#include "sim/run/judge.h"

#include <cstdint>
#include <span>
#include <vector>

namespace cpscope {

/// out and lse of one query row.
struct MergedRow {
  double lse;  // -inf if no part sees a key
  std::vector<double> out;
};

/// Merges the parts of a query by their lse; part r counts times[r] times, the sink `sinks` times.
MergedRow merge_parts(const QueryParts& parts, std::span<const double> times, double sink,
                      double sinks);

/// The same by another rule, which does not weigh the parts by their lse. `query_rank`: the owner
/// of the row.
MergedRow merge_wrongly(const QueryParts& parts, PartsMistake::Merge how, int32_t query_rank);

/// The sum of the parts of a gradient of one key row, each as often as the mistake says.
std::vector<double> add_parts(const std::vector<double>& parts, const Suspect& suspect,
                              const PartsMistake& mistake, int64_t token);

}  // namespace cpscope
