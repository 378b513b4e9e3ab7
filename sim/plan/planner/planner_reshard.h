#pragma once

#include "sim/plan/plan.h"

namespace cpscope {

/// One change of order: every valid query token goes from the rank that owns it in `from`, the
/// scenario's layout, to the one that owns it in `to`, a layout with runs of stride 1 of the batch.
/// A row has the width of all query heads (heads x head_dim_qk elements of the dtype), as hidden
/// states mostly have. Layers that need tokens in order (state-space models, convolutions) do it
/// before, and the other way round after. With cp_sizes the rows of one round: each goes to a rank
/// of its group, if `to` has the same rounds. A plan of transfers alone: it computes nothing and is
/// not proved.
Plan plan_reshard(const Scenario& scenario, Layout from, const Layout& to, size_t round = 0);

}  // namespace cpscope
