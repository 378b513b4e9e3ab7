#pragma once

#include "gui/model/view.h"

namespace cpscope::gui {

// The light of an object according to both projections of a view: objects that the hovered target
// touches are hovered, the selected object itself is selected, objects that it touches are related.
// All in O(log n).

/// Light of any of the ids [begin, end).
Light light_of_tokens(const ViewInput& input, Side side, int64_t begin, int64_t end);
Light light_of_rank(const ViewInput& input, int32_t rank);
Light light_of_link(const ViewInput& input, int32_t src, int32_t dst);
/// Light of a step of PlanIndex::steps.
Light light_of_step(const ViewInput& input, int32_t step);
Light light_of_item(const ViewInput& input, const ItemId& item);

}  // namespace cpscope::gui
