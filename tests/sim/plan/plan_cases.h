#pragma once

#include "sim/plan/plan.h"
#include "sim/plan/plan_summary.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <string>
#include <vector>

namespace cpscope::tests {

/// Ids written out, one list per rank.
using Order = std::vector<std::vector<int64_t>>;

/// Chunks that ranks hold, one list per rank.
using Held = std::vector<std::vector<int64_t>>;

/// A small causal scenario of self attention: one head of head_dim 4, everything else at its
/// default.
Scenario make_case(std::vector<int64_t> lengths, int32_t cp_size,
                   LayoutKind layout = LayoutKind::dual_chunk, CommType comm = CommType::p2p);

/// The same with keys of other lengths.
Scenario make_cross_case(std::vector<int64_t> lengths, std::vector<int64_t> kv_lengths,
                         int32_t cp_size, LayoutKind layout = LayoutKind::dual_chunk,
                         CommType comm = CommType::p2p);

/// The scenario's text, for failure messages.
std::string show(const Scenario& scenario);
std::string show(const std::vector<int64_t>& ids);

/// The layout or plan of a valid scenario; aborts with the refusal otherwise.
Layout layout_of(const Scenario& scenario);
Plan plan_of(const Scenario& scenario);

/// Fails the test where a check of the plan does not pass.
void expect_proved(const Plan& plan);

/// Token ids of every rank in local order.
Order query_order(const Layout& layout);
Order key_order(const Layout& layout);

}  // namespace cpscope::tests
