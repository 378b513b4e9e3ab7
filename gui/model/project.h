#pragma once

#include "gui/model/view.h"

namespace cpscope::gui {

/// What a target touches, by the facts of the plan.
///   tokens: their owners, the rows and columns they see and are seen by, the transfers they travel
///           in and the items that read them;
///   rank:   its tokens, links and items;  link: its transfers and the rows they carry;
///   item:   its rows, ranks and step;     step: its items;
///   pairs:  the items that compute them.
/// Exact; items beyond Projection::kMostItems are left out and counted in has_more_items, ranks,
/// links, steps and tokens never are.
Projection project(const Target& target, const PlanIndex& plan);

/// How strongly a thing is lit by a projection: `lit` when the projection touches it.
Light light_of_tokens(const Projection& projection, Side side, int64_t begin, int64_t end,
                      Light lit);
Light light_of_rank(const Projection& projection, int32_t rank, Light lit);
Light light_of_link(const Projection& projection, int32_t src, int32_t dst, Light lit);
Light light_of_step(const Projection& projection, int32_t step, Light lit);
Light light_of_item(const Projection& projection, const ItemTarget& item, Light lit);

/// The strongest light of both projections of a view: hovered things are lit as hovered, what the
/// selection touches as related, the selection itself as selected.
Light light_of_tokens(const ViewInput& input, Side side, int64_t begin, int64_t end);
Light light_of_rank(const ViewInput& input, int32_t rank);
Light light_of_link(const ViewInput& input, int32_t src, int32_t dst);
Light light_of_step(const ViewInput& input, int32_t step);
Light light_of_item(const ViewInput& input, const ItemTarget& item);

}  // namespace cpscope::gui
