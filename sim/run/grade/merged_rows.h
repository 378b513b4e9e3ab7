#pragma once

// Private to the search for causes: rows put together from the parts of several ranks, rightly or
// with a mistake.

#include "sim/run/dtype.h"
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

/// The same by another rule than the lse of the parts, or with roundings to the dtype.
/// `query_rank`: the owner of the row.
MergedRow merge_wrongly(const QueryParts& parts, PartsMistake::Merge how, int32_t query_rank,
                        Dtype dtype);

/// How often each part counts in dq if its buffer is reused; `parts` and the rank as above.
std::vector<double> times_of_reused_buffer(const QueryParts& parts, int32_t query_rank);

/// The sum of the parts of a gradient of one key row, each as often as the mistake says.
std::vector<double> add_parts(const std::vector<double>& parts, const Suspect& suspect,
                              const PartsMistake& mistake, int64_t token);

}  // namespace cpscope
