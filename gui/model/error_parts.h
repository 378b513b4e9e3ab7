#pragma once

#include "gui/model/error_scale.h"
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
};

/// Heat map, rulers, owners and the colour scale.
void add_error_heat(const ShownErrors& shown, const Box& box, View& view);
/// How many rows err how far.
void add_error_histogram(const ShownErrors& shown, const Box& box, View& view);
/// The rows that are furthest off, as many as fit.
void add_worst_rows(const ShownErrors& shown, const Box& box, View& view);

/// dk and dv have a row for every key, the others for every query.
Side side_of_tensor(int32_t tensor);

/// A line of text that ends where its room does.
void add_text(const ViewInput& input, View& view, Point at, float room, const std::string& text,
              Role role, float size = 12, Face face = Face::body);

}  // namespace cpscope::gui
