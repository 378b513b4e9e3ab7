#include "gui/app/prediction.h"
#include "gui/model/project.h"

#include <algorithm>

namespace cpscope::gui {
namespace {

/// How long a plan takes, to compare it with others: predicted nanoseconds, or the triples of the
/// forward, if every step waits for its busiest rank.
double length_of(const AppState& state, const SharedPlan& plan, bool is_predicted) {
  if (is_predicted) return static_cast<double>(predicted_run(state, plan)->total_ns);
  const PlanSummary& summary = plan->summary();
  return summary.critical_path_over_ideal * static_cast<double>(summary.visible_pairs) /
         plan->num_ranks();
}

/// Of compared plans, those with less to wait for end earlier on a common scale.
double find_stretch(const AppState& state, const SharedPlan& plan) {
  if (state.pinned.empty() || plan == nullptr || state.plan() == nullptr) return 1;
  std::vector<SharedPlan> plans = state.pinned;
  plans.push_back(state.document.plan());
  const bool is_predicted =
      state.shows_time && std::all_of(plans.begin(), plans.end(), [&](const SharedPlan& each) {
        return predicted_run(state, each) != nullptr;
      });
  double longest = 0;
  for (const SharedPlan& each : plans)
    longest = std::max(longest, length_of(state, each, is_predicted));
  const double own = length_of(state, plan, is_predicted);
  return own > 0 ? std::max(1.0, longest / own) : 1;
}

ViewInput view_input_of(const AppState& state, ViewKind kind, const SharedPlan& plan) {
  ViewInput input;
  input.plan = plan.get();
  input.camera = state.camera(kind);
  input.theme = &theme_of(state.theme);
  input.selection = state.selected();
  input.focus_rank = state.focus_rank;
  input.is_cumulative = state.is_cumulative;
  input.shows_time = state.shows_time;
  input.tensor = state.tensor;
  // A run of another plan has other rows: it is kept, but not shown with this plan.
  if (state.run_a && state.run_a_plan == plan) input.run_a = state.run_a.get();
  if (state.run_b && state.run_b_plan == plan) input.run_b = state.run_b.get();
  if (kind == ViewKind::timeline) {
    const TimedRuns runs = timed_runs(state, plan);
    input.run_a = runs.a.get();
    input.run_b = runs.b.get();
  }
  // The only run of this plan may be B, as of a plan that was pinned.
  if (kind == ViewKind::numbers && input.run_a == nullptr) input.run_a = input.run_b;
  input.is_by_step = state.is_by_step;
  input.is_by_rank = state.is_by_rank;
  input.mask_colors = state.mask_colors;
  if (kind == ViewKind::timeline) input.stretch = find_stretch(state, plan);
  const Comparison& comparison = state.comparison;
  if (kind == ViewKind::numbers && state.is_beside_b && comparison.view &&
      comparison.runs.own.get() == input.run_a && comparison.runs.own_plan == plan)
    input.run_a = comparison.view.get();
  return input;
}

/// How far the moment is in a view; other views do not move, and need no new picture.
double progress_of(const AppState& state, ViewKind kind, const PlanIndex& plan,
                   const Playhead& playhead) {
  if (kind == ViewKind::layout) return reorder_progress(plan, playhead);
  const bool moves = kind == ViewKind::mask || kind == ViewKind::traffic;
  return moves ? motion_progress(plan, playhead, state.player) : 1.0;
}

}  // namespace

Projections project_all(const AppState& state) {
  const PlanIndex* plan = state.plan();
  if (plan == nullptr) return {};
  Projections both;
  if (is_present(*plan, state.selected())) both.selected = project(state.selected(), *plan);
  if (is_present(*plan, state.hovered)) both.hovered = project(state.hovered, *plan);
  return both;
}

ViewInput view_input(const AppState& state, ViewKind kind) {
  ViewInput input = view_input_of(state, kind, state.document.plan());
  if (input.plan == nullptr) return input;
  input.moment = moment_of(*input.plan, state.playhead);
  input.progress = progress_of(state, kind, *input.plan, state.playhead);
  return input;
}

ViewInput view_input_pinned(const AppState& state, ViewKind kind, size_t which) {
  ViewInput input = view_input_of(state, kind, state.pinned[which]);
  if (input.plan == nullptr) return input;
  const Playhead playhead = clamp_to(*input.plan, state.playhead);
  input.moment = moment_of(*input.plan, playhead);
  input.progress = progress_of(state, kind, *input.plan, playhead);
  input.focus_rank = std::min(input.focus_rank, input.plan->num_ranks() - 1);
  return input;
}

}  // namespace cpscope::gui
