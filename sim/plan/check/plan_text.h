#pragma once

#include "sim/plan/check/plan_check.h"
#include "sim/plan/item_event.h"

#include <ostream>

namespace cpscope {

/// A stable, readable dump of the plan: the owner of each token, then what happens in every step
/// and why. At most `max_lines` lines; the last line counts what is left out. 0 = no limit.
void write_plan_text(const CheckedPlan& checked, int64_t max_lines, std::ostream& out);

/// "[0, 88) [616, 704)"; strided runs as "0:128:4". Long lists are cut after `max_runs` runs, with
/// a count.
std::string describe_runs(std::span<const TokenRun> runs, size_t max_runs = 6);

/// The shape of a band: "q[0, 8) x k[0, 8) causal", "full", "window -3..0".
std::string describe_band(const BandSlice& band);

/// One short phrase for an item, without its rank: "q.home x kv.ring_a, heads [0, 4), 16384 pairs".
std::string describe_item(const Plan& plan, const ItemId& id);

}  // namespace cpscope
