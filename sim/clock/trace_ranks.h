#pragma once

#include "sim/base/ids.h"
#include "sim/base/result.h"
#include "sim/clock/foreign_trace.h"
#include "sim/clock/trace_match.h"

#include <vector>

namespace cpscope {

/// All that one rank of the plan did.
struct RankTrace {
  RankId rank{};
  TraceProcess work;
};

/// Says which rank of a context-parallel group of `cp_size` each process of the traces is: by the
/// source, by its label, or by the file's rank and process groups. Ascending. Errors (bad_input): a
/// rank that is not clear, not below cp_size, or there twice.
Result<std::vector<RankTrace>> assign_ranks(std::vector<ForeignTrace> traces,
                                            const std::vector<TraceSource>& sources,
                                            int64_t cp_size);

}  // namespace cpscope
