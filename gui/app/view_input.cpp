#include "gui/app/app_state.h"
#include "gui/model/project.h"

namespace cpscope::gui {

Projections project_all(const AppState& state) {
  const PlanIndex* plan = state.plan();
  if (plan == nullptr) return {};
  Projections both;
  if (is_present(*plan, state.selected())) both.selected = project(state.selected(), *plan);
  if (is_present(*plan, state.hovered)) both.hovered = project(state.hovered, *plan);
  return both;
}

ViewInput view_input(const AppState& state, ViewKind kind) {
  ViewInput input;
  input.plan = state.plan();
  input.camera = state.camera(kind);
  input.theme = &theme_of(state.theme);
  input.selection = state.selected();
  input.focus_rank = state.focus_rank;
  input.is_cumulative = state.is_cumulative;
  input.shows_time = state.shows_time;
  input.tensor = state.tensor;
  // A run of another plan has other rows: it is kept, but not laid over this one.
  if (state.run_a && state.run_a_plan == state.document.plan()) input.run_a = state.run_a.get();
  if (state.run_b && state.run_b_plan == state.document.plan()) input.run_b = state.run_b.get();
  if (input.plan != nullptr) {
    input.moment = moment_of(*input.plan, state.playhead);
    input.progress = reorder_progress(*input.plan, state.playhead);
  }
  return input;
}

}  // namespace cpscope::gui
