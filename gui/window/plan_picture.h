#pragma once

#include "gui/draw/drawing.h"
#include "sim/base/result.h"
#include "sim/clock/candidates.h"
#include "sim/clock/cluster.h"
#include "sim/plan/check/plan_check.h"

#include <cstdint>
#include <optional>
#include <string>

namespace cpscope::gui {

/// A picture of a plan that is in memory, for a page that shows it.
struct PlanPictureRequest {
  std::string view;                // a view's name but numbers, or all
  std::string theme = "light";     // dark | light | print
  std::optional<int64_t> step;     // forward steps first, then backward ones; nothing: as `render`
  std::optional<int64_t> rank;     // whose local order, whose caption
  std::optional<Cluster> cluster;  // whose predicted times to show
  std::string stack;               // of the cluster; empty: its first
  std::optional<Size> size;        // logical pixels; nothing: what suits the view
  bool is_bare = false;            // the view alone, without title, facts, steps and caption
  std::string id_prefix;           // of ids in the SVG, which are unique on a page
};

/// The picture as SVG for another page: without an XML declaration. `title` and `question` are
/// those of the scenario in the plan. Errors: bad_input for a view, theme, step, rank or size that
/// there is not, and those of a prediction.
Result<std::string> draw_plan_svg(const CheckedPlan& plan, const PlanPictureRequest& request);

/// The ways to split one batch, as `compare --out` draws them, likewise.
Result<std::string> draw_comparison_svg(const Candidates& comparison, const std::string& title,
                                        const std::string& theme, const std::string& id_prefix);

}  // namespace cpscope::gui
