#include "gui/window/seek.h"

#include "gui/app/document/player.h"

#include <fmt/format.h>

namespace cpscope::gui {

std::optional<Error> seek_named_step(AppState& state, int64_t step) {
  const PlanIndex& plan = *state.plan();
  const auto steps = static_cast<int64_t>(plan.steps().size());
  const int64_t forward = plan.pass(Direction::forward).num_steps;
  if (step < 0 || step >= steps) {
    const std::string range = steps == forward
                                  ? fmt::format("use 0 to {}", steps - 1)
                                  : fmt::format("use 0 to {}: 0 to {} forward, {} to {} backward",
                                                steps - 1, forward - 1, forward, steps - 1);
    return make_error(ErrorKind::bad_input, fmt::format("--step: this plan has no step {}", step),
                      range);
  }
  state.playhead = seek_step(plan, state.playhead, static_cast<int32_t>(step));
  return std::nullopt;
}

int32_t first_shown_step(const PlanIndex& plan) {
  return plan.pass(Direction::forward).num_steps > 1 ? 1 : 0;
}

}  // namespace cpscope::gui
