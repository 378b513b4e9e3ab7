#pragma once

#include "gui/model/numbers/error_scale.h"
#include "gui/model/plan_index.h"
#include "gui/model/view.h"

namespace cpscope::gui {

/// One tensor of a run in the numbers view.
struct ShownErrors {
  const ViewInput& input;
  const ErrorField& field;
  int32_t tensor = 0;  // index in kErrorTensors
  Side side{};         // side of its tokens
  ErrorScale scale;
  const StepErrors* steps = nullptr;  // not null: the field is of one of these steps
  int32_t step = -1;                  // index in PlanIndex::steps
};

/// Adds the worst row of every step that writes the tensor, with the current step and the first
/// diverging item. Hits: "step/N".
void add_step_strip(const ShownErrors& shown, const Box& box, View& view);

/// Adds how far two plans are apart on each rank and in each head, where the field is a difference
/// of two plans. Hits: "part/CHART/N". Returns the height that it took, 0 if there is nothing to
/// show.
float add_distance_bars(const ShownErrors& shown, const Box& box, View& view);

/// Adds heat map, rulers, owners and the colour scale.
void add_error_heat(const ShownErrors& shown, const Box& box, View& view);
/// Adds the histogram of row errors.
void add_error_histogram(const ShownErrors& shown, const Box& box, View& view);
/// Adds the rows with the largest errors, as many as fit.
void add_worst_rows(const ShownErrors& shown, const Box& box, View& view);

/// The largest share of a field's rows; kNothing if it has none.
float worst_share(const ErrorField& field);
/// "forward step 3 of 8": steps count from 1 on screen.
std::string describe_step(const PlanIndex& plan, int32_t step);

/// Adds a line of text, cut to `room`.
void add_text(const ViewInput& input, View& view, Point at, float room, const std::string& text,
              Role role, float size = 12, Face face = Face::body);

}  // namespace cpscope::gui
