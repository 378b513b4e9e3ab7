#pragma once

#include "gui/model/plan_index.h"
#include "gui/model/target.h"

#include <cstdint>
#include <span>
#include <vector>

namespace cpscope::gui {

/// The ids of a run in the slot of one sequence.
struct SequencePart {
  int64_t sequence = 0;
  int64_t position = 0;  // of the first id, from the first valid token: below 0 before it
  TokenRun ids, valid;   // all of them, and those that are no padding
};

/// The parts of a run by sequence, ascending; sequences without an id are left out.
std::vector<SequencePart> sequence_parts(const PlanIndex& index, Side side, const TokenRun& run);
/// Number of valid tokens among the ids of a run.
int64_t count_valid(const PlanIndex& index, Side side, const TokenRun& run);

/// What one rank owns of a range of ids.
struct OwnedPart {
  int32_t rank = 0;
  int64_t tokens = 0, runs = 0;
  int64_t first_row = 0;  // local row of the first id of the first run
};

/// The parts of a range by rank, ascending. O(runs that meet it), or O(all runs) with stripes.
std::vector<OwnedPart> owned_parts(const PlanIndex& index, const TokenRange& tokens);

/// Ranks that own the ids of a list, ascending.
std::vector<int32_t> owners_of(const PlanIndex& index, std::span<const TokenRun> runs, Side side);

}  // namespace cpscope::gui
