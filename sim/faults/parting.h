#pragma once

#include "sim/faults/planted.h"
#include "sim/run/walk_trace.h"

#include <cstdint>
#include <optional>

namespace cpscope {

/// The first moment at which a run's numbers differ from the healthy run of the proved plan.
struct Parting {
  FaultSite site;  // item of the proved plan that should have written the rows
  BufferId buffer{};
  int64_t row_begin = 0, row_end = 0;  // rows [begin, end) contain all differences in this buffer
  int64_t token = -1;  // packed padded id of the first one; -1 if rows name no tokens
};

/// Compares two traces stage by stage, bit by bit. Stages that one plan lacks are skipped. Nothing
/// if the runs never differ.
std::optional<Parting> find_parting(const Plan& healthy_plan, const WalkTrace& healthy,
                                    const Plan& plan, const WalkTrace& trace);

/// Rows of results (out, dq, dk, dv; whole and partial) in which the runs differ at any moment.
int64_t count_parted_results(const Plan& healthy_plan, const WalkTrace& healthy, const Plan& plan,
                             const WalkTrace& trace);

}  // namespace cpscope
