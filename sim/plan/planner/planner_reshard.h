#pragma once

#include "sim/base/result.h"
#include "sim/plan/plan.h"

namespace cpscope {

/// One change of order: every valid query token goes from the rank that owns it in the scenario's
/// layout to the one that owns it in `to`, a layout with runs of stride 1 of the same batch. A row
/// has the width of all query heads (heads x head_dim_qk elements of the dtype), as hidden states
/// mostly have. Layers that need tokens in order (state-space models, convolutions) do it before,
/// and the other way round after. A plan of transfers alone: it computes nothing and is not proved.
Result<Plan> plan_reshard(const Scenario& scenario, const Layout& to);

}  // namespace cpscope
