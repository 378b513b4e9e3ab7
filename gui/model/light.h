#pragma once

#include "gui/model/view.h"

namespace cpscope::gui {

// How strongly a thing is lit by both projections of a view: what the hovered target touches is
// hovered, the selected thing itself selected, what it touches related. All in O(log n).

/// Any of the ids [begin, end).
Light light_of_tokens(const ViewInput& input, Side side, int64_t begin, int64_t end);
Light light_of_rank(const ViewInput& input, int32_t rank);
Light light_of_link(const ViewInput& input, int32_t src, int32_t dst);
/// A step of PlanIndex::steps.
Light light_of_step(const ViewInput& input, int32_t step);
Light light_of_item(const ViewInput& input, const ItemTarget& item);

}  // namespace cpscope::gui
