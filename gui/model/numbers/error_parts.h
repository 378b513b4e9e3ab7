#pragma once

#include "gui/model/numbers/error_scale.h"
#include "gui/model/plan_index.h"
#include "gui/model/view.h"

namespace cpscope::gui {

/// One tensor of a run as the numbers view shows it.
struct ShownErrors {
  const ViewInput& input;
  const ErrorField& field;
  int32_t tensor = 0;  // in kErrorTensors
  Side side{};         // of its tokens
  ErrorScale scale;
  const StepErrors* steps = nullptr;  // the field is of one step of these
  int32_t step = -1;                  // of PlanIndex::steps
};

/// The worst row of every step that writes the tensor, with the step of now and the first item that
/// parts. Hits: "step/N".
void add_step_strip(const ShownErrors& shown, const Box& box, View& view);

/// Heat map, rulers, owners and the colour scale.
void add_error_heat(const ShownErrors& shown, const Box& box, View& view);
/// How many rows err how far.
void add_error_histogram(const ShownErrors& shown, const Box& box, View& view);
/// The rows that are furthest off, as many as fit.
void add_worst_rows(const ShownErrors& shown, const Box& box, View& view);

/// The largest share of a field's rows; kNothing where it has none.
float worst_share(const ErrorField& field);
/// "forward step 3 of 8": steps count from 1 on screen.
std::string describe_step(const PlanIndex& plan, int32_t step);

/// dk and dv have a row for every key, the others for every query.
Side side_of_tensor(int32_t tensor);

/// A line of text that ends where its room does.
void add_text(const ViewInput& input, View& view, Point at, float room, const std::string& text,
              Role role, float size = 12, Face face = Face::body);

}  // namespace cpscope::gui
