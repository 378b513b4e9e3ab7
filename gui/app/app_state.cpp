#include "gui/app/app_state.h"

#include "gui/app/plan_difference.h"
#include "gui/app/prediction.h"
#include "gui/app/question.h"
#include "gui/app/run_views.h"
#include "gui/app/ways.h"
#include "gui/model/error_field.h"
#include "sim/plan/visit_items.h"

#include <algorithm>
#include <utility>

namespace cpscope::gui {
namespace {

struct IsPresent {
  const PlanIndex& plan;

  bool has_rank(int32_t rank) const { return rank >= 0 && rank < plan.num_ranks(); }
  bool has_ids(Side side, int64_t begin, int64_t end) const {
    return begin >= 0 && begin < end && end <= plan.tokens(side);
  }
  bool operator()(const Nothing&) const { return true; }
  bool operator()(const TokenRange& t) const { return has_ids(t.side, t.begin, t.end); }
  bool operator()(const PairRange& p) const {
    return has_ids(Side::q, p.q_begin, p.q_end) && has_ids(Side::kv, p.k_begin, p.k_end);
  }
  bool operator()(const RankTarget& r) const { return has_rank(r.rank); }
  bool operator()(const LinkTarget& l) const { return has_rank(l.src) && has_rank(l.dst); }
  bool operator()(const ItemId& i) const {
    return i.index >= 0 && i.index < count_items(plan.pass(i.direction), i.kind);
  }
  bool operator()(const StepTarget& s) const {
    return s.step >= 0 && s.step < static_cast<int32_t>(plan.steps().size());
  }
  bool operator()(const RowTarget& r) const {
    const Side side = side_of_tensor(r.tensor);
    const Attention& attention = plan.plan().scenario.attention;
    return r.tensor >= 0 && r.tensor < static_cast<int32_t>(kErrorTensors.size()) &&
           has_ids(side, r.token, r.token + 1) && r.head >= 0 &&
           r.head < (side == Side::kv ? attention.kv_heads : attention.heads);
  }
};

/// Clamps every index into the plan to what the plan has.
void clamp_to_plan(AppState& state) {
  const PlanIndex* plan = state.plan();
  if (plan == nullptr) return;
  state.playhead = clamp_to(*plan, state.playhead);
  state.focus_rank = std::clamp(state.focus_rank, 0, plan->num_ranks() - 1);
  if (state.other_rank >= plan->num_ranks() || state.other_rank == state.focus_rank)
    state.other_rank = -1;
  state.tensor = std::clamp(state.tensor, 0, static_cast<int32_t>(kErrorTensors.size()) - 1);
  std::erase_if(state.answer.ranks, [&](int32_t rank) { return rank >= plan->num_ranks(); });
}

/// Moves the playhead of a newly opened scenario to its first place, as soon as its plan is ready.
void begin_if_planned(AppState& state) {
  if (!state.begins || !state.document.is_current()) return;
  state.begins = false;
  state.playhead = first_place(*state.plan());
}

void begin_opened(AppState& state) {
  state.player.is_playing = false;
  state.begins = true;
  begin_if_planned(state);
}

void take_job(AppState& state) {
  std::unique_ptr<Result<SharedRun>> result = state.job.task.take();
  if (!result) return;
  if (!*result) {
    state.job.next.clear();
    tell(state, to_text(result->error()), true);
    return;
  }
  (state.job.is_b ? state.run_b : state.run_a) = std::move(*result).value();
  (state.job.is_b ? state.run_b_plan : state.run_a_plan) = state.job.plan;
  // A trace has nothing but its times to show.
  const SharedRun& run = state.job.is_b ? state.run_b : state.run_a;
  if (run->errors.empty() && !run->events.empty()) state.shows_time = true;
  const std::string next = std::exchange(state.job.next, "");
  if (!next.empty() && state.job.plan == state.document.plan()) start_run(state, next, true);
}

/// Compares the two runs again whenever one of them, or the shown plan, has changed.
void compare_in_background(AppState& state) {
  Comparison& comparison = state.comparison;
  const ComparedRuns runs = compared_runs(state);
  if (!runs.own || !runs.own->record || !runs.other->record) {
    if (comparison.runs.own) comparison = {};
    return;
  }
  if (comparison.runs != runs) {
    comparison = {};
    comparison.runs = runs;
    comparison.is_refused =
        runs.own_plan != runs.other_plan &&
        refuse_difference(runs.own_plan->plan(), runs.other_plan->plan()).has_value();
    if (comparison.is_refused) return;
    comparison.task.start([runs](TaskControl&) {
      return runs.own_plan == runs.other_plan
                 ? compare_runs(*runs.own, *runs.other, *runs.own_plan)
                 : compare_across_plans({runs.own.get(), runs.own_plan.get()},
                                        {runs.other.get(), runs.other_plan.get()});
    });
  }
  const std::unique_ptr<Result<SharedRun>> made = comparison.task.take();
  if (!made) return;
  if (*made)
    comparison.view = made->value();
  else
    tell(state, to_text(made->error()), true);
}

void take_saving(AppState& state) {
  const std::unique_ptr<std::optional<Error>> result = state.saving.task.take();
  if (!result) return;
  if (*result) return tell(state, to_text(**result), true);
  tell(state, "Wrote " + state.saving.path);
}

void start_job(AppState& state, std::string title, bool is_b, RunOrder order) {
  state.job.title = std::move(title);
  state.job.is_b = is_b;
  state.job.plan = order.plan;
  state.job.next.clear();
  const Services& services = state.services;
  if (services.run_elsewhere) return state.job.task.wait_for(services.run_elsewhere(order));
  state.job.task.start([run = services.run, read = services.read_record,
                        order = std::move(order)](TaskControl& control) {
    return order.executor.empty() ? read(order.record, order.plan, control)
                                  : run(order.executor, order.plan, control);
  });
}

/// The one rank that a target is about: itself, the owner of its tokens, or who computes it; -1 if
/// there is none.
int32_t rank_of(const Target& target, const PlanIndex* plan) {
  if (const auto* rank = std::get_if<RankTarget>(&target)) return rank->rank;
  if (plan == nullptr || !is_present(*plan, target)) return -1;
  if (const auto* item = std::get_if<ItemId>(&target); item && item->kind == StageKind::compute)
    return to_index(plan->pass(item->direction).computes[static_cast<size_t>(item->index)].rank);
  const auto* tokens = std::get_if<TokenRange>(&target);
  if (tokens == nullptr) return -1;
  const int32_t first = plan->owner(tokens->side, tokens->begin).rank;
  return first == plan->owner(tokens->side, tokens->end - 1).rank ? first : -1;
}

/// Gives a selected rank to a question that asks for ranks.
void answer_with(AppState& state, const Target& target) {
  const Question* question = open_question(state);
  const int32_t rank = rank_of(target, state.plan());
  if (question != nullptr && question->kind == AnswerKind::ranks && rank >= 0 &&
      rank < state.plan()->num_ranks())
    toggle_rank(state, rank);
}

}  // namespace

void update(AppState& state, double now_s) {
  state.now_s = now_s;
  std::erase_if(state.messages, [&](const Message& message) {
    return !message.is_error && now_s > message.since_s + kMessageSeconds;
  });
  state.document.poll();
  begin_if_planned(state);
  clamp_to_plan(state);
  if (const PlanIndex* plan = state.plan())
    state.playhead = play_until(*plan, state.playhead, state.player, now_s);
  take_job(state);
  take_saving(state);
  compare_in_background(state);
  predict_in_background(state);
  compare_ways_in_background(state);
}

void settle(AppState& state) {
  state.document.wait();
  begin_if_planned(state);
  clamp_to_plan(state);
}

bool open_scenario(AppState& state, const std::string& path) {
  if (const std::optional<Error> error = state.document.load(path)) {
    tell(state, to_text(*error), true);
    return false;
  }
  begin_opened(state);
  clamp_to_plan(state);
  return true;
}

bool open_shipped(AppState& state, std::string_view name) {
  const std::optional<std::string> text =
      state.services.scenario_source ? state.services.scenario_source(name) : std::nullopt;
  if (!text) {
    tell(state, "There is no shipped scenario of this name: " + std::string(name), true);
    return false;
  }
  return open_text(state, *text, std::string(name) + ".toml");
}

bool open_text(AppState& state, const std::string& text, const std::string& name) {
  if (const std::optional<Error> error =
          state.document.load_text(text, name, state.services.scenario_folder)) {
    tell(state, to_text(*error), true);
    return false;
  }
  begin_opened(state);
  clamp_to_plan(state);
  return true;
}

void edit_scenario(AppState& state, Scenario scenario, std::string_view key) {
  state.begins = false;
  state.document.edit(std::move(scenario), key);
  clamp_to_plan(state);
}

void undo_edit(AppState& state) {
  state.document.undo();
  clamp_to_plan(state);
}

void redo_edit(AppState& state) {
  state.document.redo();
  clamp_to_plan(state);
}

void select(AppState& state, const Target& target) {
  answer_with(state, target);
  SelectionHistory& history = state.selection;
  if (history.current() == target) return;
  history.targets.resize(history.at + 1);
  history.targets.push_back(target);
  if (history.targets.size() > SelectionHistory::kMost)
    history.targets.erase(history.targets.begin());
  history.at = history.targets.size() - 1;
  if (const int32_t rank = rank_of(target, state.plan()); rank >= 0) state.focus_rank = rank;
  clamp_to_plan(state);
}

void select_previous(AppState& state) {
  if (state.selection.at > 0) --state.selection.at;
}

void select_next(AppState& state) {
  if (state.selection.at + 1 < state.selection.targets.size()) ++state.selection.at;
}

bool is_present(const PlanIndex& plan, const Target& target) {
  return std::visit(IsPresent{plan}, target);
}

void start_run(AppState& state, const std::string& executor, bool is_b) {
  if (!state.services.run || !state.document.plan()) return;
  start_job(state, "Running on " + executor, is_b, {executor, "", state.document.plan()});
}

void run_fault(AppState& state, std::string_view fault) {
  start_run(state, std::string(kFaultExecutor) + std::string(fault), false);
  state.job.title = "Running with the fault";
  state.job.next = "cpu";
  state.focus_view = ViewKind::numbers;
  state.is_by_step = false;
}

void open_record(AppState& state, const std::string& path, bool is_b) {
  if (!state.services.read_record || !state.document.plan()) return;
  start_job(state, "Reading " + path, is_b, {"", path, state.document.plan()});
}

void cancel_job(AppState& state) {
  if (state.job.task.is_running()) {
    state.job.task.cancel();
    return tell(state, state.job.title + " was cancelled");
  }
  if (!state.saving.task.is_running()) return;
  state.saving.task.cancel();
  tell(state, "Writing " + state.saving.path + " was cancelled");
}

Borders borders_around(ViewKind kind) {
  constexpr float kLarge = 0.66F;
  const bool is_above =
      kind == ViewKind::layout || kind == ViewKind::mask || kind == ViewKind::traffic;
  Borders borders;
  borders.rows = is_above ? kLarge : 1 - kLarge;
  float& left = is_above ? borders.top_left : borders.bottom_left;
  float& right = is_above ? borders.top_right : borders.bottom_right;
  constexpr float kRest = (1 - kLarge) / 2;
  const bool is_first = kind == ViewKind::layout || kind == ViewKind::timeline;
  const bool is_last = kind == ViewKind::traffic || kind == ViewKind::balance;
  left = is_first ? kLarge : kRest;
  right = is_last ? 1 - kLarge : 1 - kRest;
  return borders;
}

std::array<float, 6> to_numbers(const Borders& borders) {
  return {borders.side,      borders.rows,        borders.top_left,
          borders.top_right, borders.bottom_left, borders.bottom_right};
}

std::optional<Borders> parse_borders(const std::array<float, 6>& numbers) {
  const auto [side, rows, top_left, top_right, bottom_left, bottom_right] = numbers;
  // Numbers that were dragged to their limit have lost a bit in a file.
  constexpr float kLeast = Borders::kLeast - 0.01F;
  const auto has_room = [](float lo, float hi) { return hi - lo >= kLeast; };
  const bool is_side = side == 0 || (side >= 0.1F && side <= 0.5F);
  if (!is_side || !has_room(0, rows) || !has_room(rows, 1) || !has_room(0, top_left) ||
      !has_room(top_left, top_right) || !has_room(top_right, 1) || !has_room(0, bottom_left) ||
      !has_room(bottom_left, bottom_right) || !has_room(bottom_right, 1))
    return std::nullopt;
  return Borders{side, rows, top_left, top_right, bottom_left, bottom_right};
}

ComparedRuns compared_runs(const AppState& state) {
  if (!state.run_a || !state.run_b || state.run_a == state.run_b) return {};
  const SharedPlan& shown = state.document.plan();
  if (state.run_a_plan == shown)
    return {state.run_a, state.run_b, state.run_a_plan, state.run_b_plan};
  if (state.run_b_plan == shown)
    return {state.run_b, state.run_a, state.run_b_plan, state.run_a_plan};
  return {};
}

void pin_plan(AppState& state) {
  const SharedPlan& plan = state.document.plan();
  state.pinned.push_back(plan);
  const bool has_run = state.run_a && state.run_a_plan == plan;
  const bool has_other = state.run_b && state.run_b_plan == plan;
  if (!has_run || has_other) return;
  state.run_b = state.run_a;
  state.run_b_plan = state.run_a_plan;
}

bool is_working(const AppState& state) {
  return state.job.task.is_running() || state.saving.task.is_running();
}

void ask_to_quit(AppState& state) {
  if (state.document.is_modified())
    state.dialog = Dialog::unsaved;
  else
    state.wants_quit = true;
}

bool save_scenario(AppState& state, const std::string& path) {
  const bool quits = std::exchange(state.quits_when_saved, false);
  if (const auto error = state.document.save(path)) {
    tell(state, to_text(*error), true);
    return false;
  }
  tell(state, "Saved " + path);
  if (quits) state.wants_quit = true;
  return true;
}

void tell(AppState& state, std::string text, bool is_error) {
  constexpr size_t kMostMessages = 50;
  state.messages.push_back({std::move(text), is_error, state.now_s});
  if (state.messages.size() > kMostMessages) state.messages.erase(state.messages.begin());
}

}  // namespace cpscope::gui
