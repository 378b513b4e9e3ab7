#include "gui/app/lesson.h"

#include "gui/app/code_places.h"
#include "gui/app/command.h"
#include "gui/app/lesson_faults.h"
#include "gui/app/lesson_parts.h"
#include "gui/app/question.h"

namespace cpscope::gui {

const LessonStep* current_step(const AppState& state) {
  const auto lessons = all_lessons();
  const LessonPlace& place = state.lesson;
  if (place.lesson < 0 || place.lesson >= static_cast<int32_t>(lessons.size())) return nullptr;
  const auto& steps = lessons[static_cast<size_t>(place.lesson)].steps;
  if (place.step < 0 || place.step >= static_cast<int32_t>(steps.size())) return nullptr;
  return &steps[static_cast<size_t>(place.step)];
}

namespace {

/// Text of the page's scenario, before the page changes it; nothing when the scenario is missing.
std::optional<std::string> find_text(const AppState& state, const LessonStep& step) {
  if (step.fault != nullptr) return step.fault->scenario;
  if (!state.services.scenario_source) return std::nullopt;
  return state.services.scenario_source(step.scenario);
}

/// The page's scenario with its changes; nothing when the scenario is missing.
std::optional<Scenario> find_scenario(const AppState& state, const LessonStep& step) {
  const std::optional<std::string> text = find_text(state, step);
  if (!text) return std::nullopt;
  Result<LoadedScenario> loaded =
      parse_scenario(*text, state.services.scenario_folder + "/lesson.toml");
  if (!loaded) return std::nullopt;
  Scenario scenario = std::move(loaded.value().scenario);
  if (step.change != nullptr) step.change(scenario);
  return scenario;
}

/// Opens the page's scenario, unless it is already open: then plan and runs stay.
bool open_page(AppState& state, const LessonStep& step) {
  if (const std::optional<Scenario> wanted = find_scenario(state, step)) {
    if (state.document.is_open() && *wanted == state.document.scenario() &&
        !state.document.refusal())
      return true;
  }
  // These functions report an error as a message.
  if (step.fault != nullptr)
    return open_text(state, step.fault->scenario, step.fault->name + ".toml");
  if (!open_shipped(state, step.scenario)) return false;
  if (step.change == nullptr) return true;
  Scenario scenario = state.document.scenario();
  step.change(scenario);
  edit_scenario(state, std::move(scenario), "lesson");
  state.document.end_edit();
  return true;
}

/// The kinds of items in a pass, as bits.
uint32_t kinds_of(const Pass& pass) {
  uint32_t kinds = 0;
  for (const Stage& stage : pass.stages) kinds |= 1U << static_cast<uint32_t>(stage.kind);
  return kinds;
}

/// True if another plan has everything that a page's text refers to: the same communication type
/// and mask type, the same kinds of items, as many sequences, more than one rank.
bool is_alike(const PlanIndex& page, const PlanIndex& shown) {
  const Plan &a = page.plan(), &b = shown.plan();
  return a.hash == b.hash || (a.scenario.parallel.comm_type == b.scenario.parallel.comm_type &&
                              a.scenario.attention.mask_type == b.scenario.attention.mask_type &&
                              a.layout.slots.sequences.size() == b.layout.slots.sequences.size() &&
                              b.layout.cp_size > 1 && kinds_of(a.forward) == kinds_of(b.forward) &&
                              kinds_of(a.backward) == kinds_of(b.backward));
}

}  // namespace

bool has_task(const LessonStep& step) { return !step.ask.empty() || step.question != nullptr; }

bool open_lesson(AppState& state, LessonPlace place) {
  const LessonPlace before = state.lesson;
  const LessonStep* last = current_step(state);
  const bool had_question = last != nullptr && last->question != nullptr;
  state.lesson = place;
  const LessonStep* step = current_step(state);
  if (step == nullptr || !open_page(state, *step)) {
    state.lesson = before;
    return false;
  }
  state.dialog = Dialog::none;
  settle(state);
  state.lesson_plan = state.document.plan();
  state.player.is_playing = false;
  state.focus_view = step->view;
  // A question shows one view: the others would show the answer.
  if (step->question != nullptr || had_question) state.is_enlarged = step->question != nullptr;
  state.shows_ways = false;
  state.cameras = {};
  if (last != nullptr && last->prepare == show_times && step->prepare != show_times)
    forget_times(state);
  if (step->prepare != nullptr && state.plan() != nullptr) step->prepare(state);
  if (step->select != nullptr && state.plan() != nullptr)
    select(state, step->select(*state.plan()));
  for (const std::string_view id : step->commands) apply_command(state, id);
  if (step->fault != nullptr && state.plan() != nullptr) show_fault(state, *step->fault);
  if (state.plan() != nullptr && !is_present(*state.plan(), state.selected()))
    select(state, Target{});
  // Nothing that was selected above is an answer.
  state.answer = {};
  return true;
}

void restore_lesson(AppState& state, LessonPlace place) {
  state.lesson = place;
  state.lesson_plan = nullptr;
  state.answer = {};
  const LessonStep* step = current_step(state);
  if (step == nullptr || !state.document.is_open()) return;
  const std::optional<Scenario> wanted = find_scenario(state, *step);
  if (!wanted) return;
  if (*wanted == state.document.scenario()) {
    state.lesson_plan = state.document.plan();
    return;
  }
  TaskControl control;
  const Result<SharedPlan> plan = plan_and_prove(*wanted, "", "", control);
  if (plan) state.lesson_plan = plan.value();
}

bool is_about_shown_plan(const AppState& state) {
  return state.plan() != nullptr && state.lesson_plan != nullptr &&
         is_alike(*state.lesson_plan, *state.plan());
}

Spans lesson_text(const AppState& state) {
  const LessonStep* step = current_step(state);
  if (step == nullptr || step->text == nullptr || state.plan() == nullptr) return {};
  if (!is_about_shown_plan(state))
    return {{.text = "The scenario is no longer one that this page can speak of. Undo the change, "
                     "or turn the page.",
             .target = {}}};
  CaptionWriter writer(*state.plan());
  step->text(writer, state);
  // The last page says where frameworks do the same.
  const Lesson& lesson = all_lessons()[static_cast<size_t>(state.lesson.lesson)];
  const std::string_view place = code_place(lesson.title);
  if (step == &lesson.steps.back() && !place.empty())
    writer.say(" In code: ").say(std::string(place)).say(".");
  return writer.take();
}

bool is_lesson_done(const AppState& state) {
  const LessonStep* step = current_step(state);
  if (step == nullptr || state.plan() == nullptr) return false;
  if (step->question != nullptr) return is_answered(state);
  return step->is_done == nullptr || step->is_done(state);
}

bool next_page(AppState& state) {
  LessonPlace place = state.lesson;
  const auto lessons = all_lessons();
  if (place.lesson < 0) return false;
  if (++place.step >= static_cast<int32_t>(lessons[static_cast<size_t>(place.lesson)].steps.size()))
    place = {place.lesson + 1, 0};
  if (place.lesson >= static_cast<int32_t>(lessons.size())) return false;
  return open_lesson(state, place);
}

bool previous_page(AppState& state) {
  LessonPlace place = state.lesson;
  if (place.lesson < 0 || (place.lesson == 0 && place.step == 0)) return false;
  if (--place.step < 0) {
    --place.lesson;
    place.step =
        static_cast<int32_t>(all_lessons()[static_cast<size_t>(place.lesson)].steps.size()) - 1;
  }
  return open_lesson(state, place);
}

void close_lesson(AppState& state) {
  const LessonStep* last = current_step(state);
  if (last != nullptr && last->question != nullptr) state.is_enlarged = false;
  if (last != nullptr && last->prepare == show_times) forget_times(state);
  state.lesson = {};
  state.answer = {};
}

}  // namespace cpscope::gui
