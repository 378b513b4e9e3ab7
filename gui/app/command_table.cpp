#include "gui/app/command.h"
#include "gui/app/copy.h"
#include "gui/app/lesson.h"
#include "gui/app/prediction.h"
#include "gui/app/question.h"
#include "gui/app/ways.h"
#include "gui/model/project.h"
#include "sim/scenario/scenario_file.h"

#include <algorithm>
#include <array>
#include <cmath>

// The table of all commands of the window, and nothing else.

namespace cpscope::gui {
namespace {

bool always(const AppState&) { return true; }
bool is_open(const AppState& state) { return state.document.is_open(); }
bool has_plan(const AppState& state) { return state.plan() != nullptr; }
bool has_files(const AppState& state) { return state.services.has_files; }
bool has_paths(const AppState& state) { return has_files(state) && !state.services.is_page; }
bool has_selection(const AppState& state) {
  return !std::holds_alternative<Nothing>(state.selected());
}
bool has_ranks(const AppState& state) { return has_plan(state) && state.plan()->num_ranks() > 1; }
bool has_runs(const AppState& state) { return state.run_a || state.run_b; }
bool can_compare(const AppState& state) {
  const ComparedRuns runs = compared_runs(state);
  if (!runs.own || runs.own_plan == runs.other_plan) return runs.own != nullptr;
  return state.comparison.runs == runs && !state.comparison.is_refused;
}
/// True if the difference of two plans' numbers is ready.
bool differs_across_plans(const AppState& state) {
  const Comparison& comparison = state.comparison;
  return can_compare(state) && comparison.view && comparison.runs == compared_runs(state) &&
         comparison.runs.own_plan != comparison.runs.other_plan;
}
bool is_job_running(const AppState& state) { return state.job.task.is_running(); }
bool has_lesson(const AppState& state) { return state.lesson.lesson >= 0; }
bool has_question(const AppState& state) {
  return open_question(state) != nullptr && !is_answered(state);
}

bool can_run_on(const AppState& state, std::string_view executor) {
  const auto& names = state.services.executors;
  return state.services.run && state.document.is_current() && !is_job_running(state) &&
         std::find(names.begin(), names.end(), executor) != names.end();
}

void pause(AppState& state) {
  state.player.is_playing = false;
  state.playhead.progress = 1.0;
}

void go(AppState& state, int32_t places) {
  pause(state);
  state.playhead = step_by(*state.plan(), state.playhead, places);
}

constexpr float kMagnifyBy = 0.25F;
constexpr int32_t kFar = 1 << 30;  // beyond either end

void toggle_play(AppState& state) {
  if (state.player.is_playing) return pause(state);
  state.player = start_playing(*state.plan(), state.playhead, state.player.speed, state.now_s);
}

void set_speed(AppState& state, double speed) {
  // The new speed starts from the place that is shown now.
  if (state.player.is_playing)
    state.player = Player{true, speed, state.playhead.index + state.playhead.progress, state.now_s};
  state.player.speed = speed;
}

constexpr double kSlowest = 1.0 / 16, kFastest = 256.0;

void turn_rank(AppState& state, int32_t by) {
  const int32_t count = state.plan()->num_ranks();
  state.focus_rank = (state.focus_rank + by + count) % count;
}

void focus(AppState& state, ViewKind kind) {
  state.focus_view = kind;
  state.shows_ways = false;
}

template <ViewKind kind>
void focus_on(AppState& state) {
  focus(state, kind);
}

ViewKind focused(const AppState& state) { return state.focus_view.value_or(ViewKind::timeline); }

/// The span, scaled about its middle and shifted, kept inside [0, 1].
AxisSpan moved(AxisSpan span, double scale, double shift) {
  constexpr double kNarrowest = 1e-7;
  const double width = std::clamp((span.hi - span.lo) * scale, kNarrowest, 1.0);
  const double middle = (span.lo + span.hi) / 2 + shift * (span.hi - span.lo);
  const double lo = std::clamp(middle - width / 2, 0.0, 1.0 - width);
  return {lo, lo + width};
}

void zoom(AppState& state, double scale) {
  Camera& camera = state.camera(focused(state));
  camera.x = moved(camera.x, scale, 0.0);
  // Rank rows of the timeline keep their height; square views are scaled on both axes.
  const ViewKind kind = focused(state);
  if (kind == ViewKind::mask || kind == ViewKind::traffic) camera.y = moved(camera.y, scale, 0.0);
}

void pan(AppState& state, double shift) {
  AxisSpan& x = state.camera(focused(state)).x;
  x = moved(x, 1.0, shift);
}

/// A span of ids as a share of all ids, with a margin of the span's own width on both sides.
AxisSpan frame(int64_t begin, int64_t end, int64_t count) {
  const double lo = static_cast<double>(begin) / static_cast<double>(count);
  const double hi = static_cast<double>(end) / static_cast<double>(count);
  return moved({lo, hi}, 3.0, 0.0);
}

void frame_selection(AppState& state) {
  const PlanIndex& plan = *state.plan();
  if (!is_present(plan, state.selected())) {
    tell(state, "The selection is not present in this plan");
    return;
  }
  const Projection p = project(state.selected(), plan);
  if (!p.q.empty()) {
    const AxisSpan q = frame(p.q.front().begin, p.q.back().end, plan.tokens(Side::q));
    state.camera(ViewKind::layout).x = q;
    state.camera(ViewKind::mask).y = q;
    state.camera(ViewKind::numbers).y = q;
  }
  if (!p.kv.empty())
    state.camera(ViewKind::mask).x =
        frame(p.kv.front().begin, p.kv.back().end, plan.tokens(Side::kv));
  if (!p.steps.empty())
    state.camera(ViewKind::timeline).x =
        frame(p.steps.front(), p.steps.back() + 1, static_cast<int64_t>(plan.steps().size()));
}

void show_whole(AppState& state) { state.cameras = {}; }

/// Selects the next item of the same kind; for other selections, the first item that they touch.
void select_related(AppState& state) {
  const PlanIndex& plan = *state.plan();
  if (!is_present(plan, state.selected())) return;
  if (const auto* item = std::get_if<ItemId>(&state.selected())) {
    ItemId next = *item;
    ++next.index;
    if (!is_present(plan, next)) next.index = 0;
    return select(state, next);
  }
  const Projection p = project(state.selected(), plan);
  if (!p.items.empty()) select(state, p.items.front());
}

void swap_runs(AppState& state) {
  std::swap(state.run_a, state.run_b);
  std::swap(state.run_a_plan, state.run_b_plan);
}

void next_theme(AppState& state) {
  const auto next = (static_cast<size_t>(state.theme) + 1) % kThemeNames.size();
  state.theme = kThemeNames[next];
}

void give_keys_to_next(AppState& state) {
  const bool has_fields = state.document.is_open();
  switch (state.key_area) {
    case KeyArea::views:
      state.key_area = has_fields ? KeyArea::scenario : KeyArea::views;
      break;
    case KeyArea::scenario:
      state.key_area = has_lesson(state) ? KeyArea::lesson : KeyArea::views;
      break;
    case KeyArea::lesson:
      state.key_area = KeyArea::views;
  }
}

void open_dialog(AppState& state, Dialog dialog) { state.dialog = dialog; }

/// Esc: closes the topmost open dialog, page or message; if nothing is open, clears the selection.
void clear(AppState& state) {
  if (state.dialog != Dialog::none) {
    state.dialog = Dialog::none;
    state.quits_when_saved = false;
  } else if (state.key_area != KeyArea::views) {
    state.key_area = KeyArea::views;
  } else if (state.shows_ways) {
    state.shows_ways = false;
  } else if (state.is_enlarged) {
    state.is_enlarged = false;
  } else if (!state.messages.empty()) {
    state.messages.pop_back();
  } else {
    state.other_rank = -1;
    select(state, Target{});
  }
}

/// A scenario without a file of its own needs a name first.
void save(AppState& state) {
  if (state.document.has_file())
    save_scenario(state, state.document.path());
  else
    state.dialog = Dialog::save_file;
}

template <Dialog dialog>
void show(AppState& state) {
  open_dialog(state, dialog);
}

constexpr std::array kTable = {
    Command{"file.open", "Open scenario...", "File", "Ctrl+O", "Opens a scenario file.", has_files,
            show<Dialog::open_file>},
    Command{
        "file.open_record", "Open record...", "File", "Ctrl+Shift+O",
        "Opens a run recorded elsewhere (.safetensors), or its trace (.json, .json.gz, .sqlite).",
        [](const AppState& s) {
          return has_paths(s) && has_plan(s) && s.services.read_record && !is_job_running(s);
        },
        show<Dialog::open_record>},
    Command{"file.save", "Save scenario", "File", "Ctrl+Shift+S",
            "Writes the scenario as TOML to its file, or asks for a name.",
            [](const AppState& s) { return has_paths(s) && is_open(s); }, save},
    Command{"file.save_as", "Save scenario as...", "File", "",
            "Writes the scenario as TOML to another file.",
            [](const AppState& s) { return has_files(s) && is_open(s); }, show<Dialog::save_file>},
    Command{"file.screenshot", "Screenshot", "File", "Ctrl+S",
            "Writes a PNG of the window and the JSON that makes it again.", has_files,
            [](AppState& s) { s.wish = ExportWish::screenshot; }},
    Command{"file.export", "Export...", "File", "Ctrl+E",
            "Writes the focused view as a picture (SVG, PNG, moving APNG) or its figures (CSV).",
            [](const AppState& s) { return has_files(s) && has_plan(s); },
            show<Dialog::export_file>},
    Command{"file.copy_link", "Copy link", "File", "",
            "Copies the address of the page with all that it shows now.",
            [](const AppState& s) { return s.services.is_page; },
            [](AppState& s) { s.wish = ExportWish::link; }},
    Command{"file.quit", "Quit", "File", "Ctrl+Q", "Closes the window; asks about changes.",
            has_paths, ask_to_quit},

    Command{"edit.undo", "Undo", "Edit", "Ctrl+Z", "Undoes the last change of the scenario.",
            [](const AppState& s) { return s.document.can_undo(); }, undo_edit},
    Command{"edit.redo", "Redo", "Edit", "Ctrl+Shift+Z Ctrl+Y",
            "Repeats the change that was undone.",
            [](const AppState& s) { return s.document.can_redo(); }, redo_edit},
    Command{"edit.copy", "Copy the inspector's text", "Edit", "Ctrl+C",
            "Copies what the inspector says about the selection.", has_plan, copy_inspector},
    Command{"edit.copy_command", "Copy the command", "Edit", "",
            "Copies a command line that draws the focused view: cpscope render ...", has_plan,
            copy_command},
    Command{"edit.copy_scenario", "Copy the scenario as TOML", "Edit", "",
            "Copies the text of the scenario, with changes that are not saved.", is_open,
            copy_scenario},
    Command{"edit.best_way", "Take the best way", "Edit", "",
            "Gives the scenario the communication type and layout that the ways recommend.",
            [](const AppState& s) { return s.shows_ways && can_take_best_way(s); },
            [](AppState& s) { take_way(s, shown_ways(s)->best); }},
    Command{"edit.find", "Find...", "Edit", "Ctrl+F",
            "Finds a token, rank, step or item by number.", has_plan, show<Dialog::find>},
    Command{"select.clear", "Clear", "Edit", "Esc",
            "Closes what is open; with nothing open, clears the selection.", always, clear},
    Command{"select.previous", "Previous selection", "Edit", "Alt+Left",
            "Goes back to what was selected before.",
            [](const AppState& s) { return s.selection.at > 0; }, select_previous},
    Command{"select.next", "Next selection", "Edit", "Alt+Right",
            "Goes forward in what was selected.",
            [](const AppState& s) { return s.selection.at + 1 < s.selection.targets.size(); },
            select_next},
    Command{"select.related", "Next related item", "Edit", "Tab",
            "Selects the first item that the selection touches, then the next of its kind.",
            [](const AppState& s) { return has_plan(s) && has_selection(s); }, select_related},

    Command{"play", "Play / pause", "Play", "Space", "Plays or pauses the schedule.", has_plan,
            toggle_play},
    Command{"step.next", "Next step", "Play", "Right .", "Moves the playhead one place on.",
            has_plan, [](AppState& s) { go(s, 1); }},
    Command{"step.previous", "Previous step", "Play", "Left ,",
            "Moves the playhead one place back.", has_plan, [](AppState& s) { go(s, -1); }},
    Command{"step.first", "First step", "Play", "Home", "Moves the playhead to the beginning.",
            has_plan, [](AppState& s) { go(s, -kFar); }},
    Command{"step.last", "Last step", "Play", "End", "Moves the playhead to the end.", has_plan,
            [](AppState& s) { go(s, kFar); }},
    Command{"event.next", "Next event of the rank", "Play", "Shift+Right",
            "Moves the playhead to the next stage in which the focus rank has work.", has_plan,
            [](AppState& s) {
              pause(s);
              s.playhead = seek_event(*s.plan(), s.playhead, s.focus_rank, true);
            }},
    Command{"event.previous", "Previous event of the rank", "Play", "Shift+Left",
            "Moves the playhead to the stage before in which the focus rank has work.", has_plan,
            [](AppState& s) {
              pause(s);
              s.playhead = seek_event(*s.plan(), s.playhead, s.focus_rank, false);
            }},
    Command{"play.unit", "By step / by stage", "Play", "U",
            "Moves the playhead by whole steps or by single stages.", has_plan,
            [](AppState& s) {
              pause(s);
              s.playhead = switch_unit(*s.plan(), s.playhead);
            }},
    Command{"speed.slower", "Slower", "Play", "-", "Halves the speed.",
            [](const AppState& s) { return s.player.speed > kSlowest; },
            [](AppState& s) { set_speed(s, s.player.speed / 2); }},
    Command{"speed.faster", "Faster", "Play", "+ =", "Doubles the speed.",
            [](const AppState& s) { return s.player.speed < kFastest; },
            [](AppState& s) { set_speed(s, s.player.speed * 2); }},
    Command{"speed.normal", "Normal speed", "Play", "", "Plays one step a second.", always,
            [](AppState& s) { set_speed(s, 1.0); }},

    Command{"view.focus.layout", "Layout", "View", "1", "Focuses the layout view for the keyboard.",
            always, focus_on<ViewKind::layout>},
    Command{"view.focus.mask", "Mask", "View", "2", "Focuses the mask view for the keyboard.",
            always, focus_on<ViewKind::mask>},
    Command{"view.focus.traffic", "Traffic", "View", "3",
            "Focuses the traffic view for the keyboard.", always, focus_on<ViewKind::traffic>},
    Command{"view.focus.timeline", "Timeline", "View", "4",
            "Focuses the timeline view for the keyboard.", always, focus_on<ViewKind::timeline>},
    Command{"view.focus.numbers", "Numbers", "View", "5",
            "Focuses the numbers view for the keyboard.", always, focus_on<ViewKind::numbers>},
    Command{"view.focus.balance", "Balance", "View", "6",
            "Focuses the balance view for the keyboard.", always, focus_on<ViewKind::balance>},
    Command{"view.ways", "Ways", "View", "7",
            "Compares every way to split this batch on the cluster, instead of the views.",
            [](const AppState& s) { return is_open(s) && !s.services.clusters.empty(); },
            [](AppState& s) { s.shows_ways = !s.shows_ways; }},
    Command{"view.enlarge", "Enlarge the focused view", "View", "Enter",
            "Enlarges the focused view to the window, or shows all views again.",
            [](const AppState& s) { return s.focus_view.has_value(); },
            [](AppState& s) { s.is_enlarged = !s.is_enlarged; }},
    Command{"view.room", "Give the focused view most of the room", "View", "Shift+Enter",
            "Makes the focused view large and keeps the others in sight; again: all as usual. The "
            "borders between views can be dragged too.",
            [](const AppState& s) { return s.focus_view.has_value(); },
            [](AppState& s) {
              const Borders wanted = borders_around(*s.focus_view);
              s.borders = s.borders == wanted ? Borders{} : wanted;
              s.is_enlarged = false;
            }},
    Command{"view.larger", "Larger text", "View", "Ctrl+Up",
            "Magnifies text and lines, for talks and projectors.",
            [](const AppState& s) { return s.magnification < kMostMagnification; },
            [](AppState& s) {
              s.magnification = std::min(kMostMagnification, s.magnification + kMagnifyBy);
            }},
    Command{"view.smaller", "Smaller text", "View", "Ctrl+Down", "Takes magnification back.",
            [](const AppState& s) { return s.magnification > 1; },
            [](AppState& s) { s.magnification = std::max(1.0F, s.magnification - kMagnifyBy); }},
    Command{"view.full_screen", "Full screen", "View", "F11",
            "Fills the monitor with the window, or makes it a window again.",
            [](const AppState& s) { return s.services.has_full_screen; },
            [](AppState& s) { s.is_full_screen = !s.is_full_screen; }},
    Command{"view.frame", "Frame the selection", "View", "F",
            "Moves all views to what is selected.",
            [](const AppState& s) { return has_plan(s) && has_selection(s); }, frame_selection},
    Command{"view.whole", "Show everything", "View", "0", "Shows the whole of every view.", always,
            show_whole},
    Command{"view.zoom_in", "Zoom in", "View", "W", "Magnifies the focused view.", has_plan,
            [](AppState& s) { zoom(s, 0.8); }},
    Command{"view.zoom_out", "Zoom out", "View", "S", "Shows more of the focused view.", has_plan,
            [](AppState& s) { zoom(s, 1.25); }},
    Command{"view.pan_left", "Pan left", "View", "A", "Moves the focused view to the left.",
            has_plan, [](AppState& s) { pan(s, -0.2); }},
    Command{"view.pan_right", "Pan right", "View", "D", "Moves the focused view to the right.",
            has_plan, [](AppState& s) { pan(s, 0.2); }},
    Command{"rank.next", "Next rank", "View", "]", "Focuses the next rank.", has_ranks,
            [](AppState& s) { turn_rank(s, 1); }},
    Command{"rank.previous", "Previous rank", "View", "[", "Focuses the previous rank.", has_ranks,
            [](AppState& s) { turn_rank(s, -1); }},
    Command{"traffic.cumulative", "Cumulative traffic", "View", "C",
            "Counts bytes since the beginning instead of now.", has_plan,
            [](AppState& s) { s.is_cumulative = !s.is_cumulative; }},
    Command{"timeline.time", "Steps / time", "View", "N",
            "Shows the measured times of the run, or predicted ones, instead of equal steps.",
            [](const AppState& s) {
              return (s.run_a && !s.run_a->events.empty()) ||
                     (s.run_b && !s.run_b->events.empty()) || s.prediction.run;
            },
            [](AppState& s) { s.shows_time = !s.shows_time; }},
    Command{"timeline.cluster", "Predict on the next cluster", "View", "K",
            "Predicts the times of the plan on the next described cluster; none after the last.",
            [](const AppState& s) { return has_plan(s) && !s.services.clusters.empty(); },
            choose_next_cluster},
    Command{"numbers.tensor", "Next tensor", "View", "T",
            "Shows the errors of the next tensor: out, lse, dq, dk, dv.", has_runs,
            [](AppState& s) {
              s.tensor = (s.tensor + 1) % static_cast<int32_t>(kErrorTensors.size());
            }},
    Command{"numbers.step", "Errors of the answer / of the step", "View", "E",
            "Shows what the step of the playhead wrote instead of the whole answer.", has_runs,
            [](AppState& s) { s.is_by_step = !s.is_by_step; }},
    Command{"numbers.beside", "Compare with the oracle / with B", "View", "V",
            "Compares run A with run B, or with the run of another plan of the same batch, instead "
            "of the oracle.",
            can_compare, [](AppState& s) { s.is_beside_b = !s.is_beside_b; }},
    Command{"compare.pin", "Pin this plan", "View", "P",
            "Keeps this plan above the next ones, up to three, and its run to compare their "
            "numbers with.",
            [](const AppState& s) {
              return has_plan(s) && s.pinned.size() < kMostPinned &&
                     std::find(s.pinned.begin(), s.pinned.end(), s.document.plan()) ==
                         s.pinned.end();
            },
            pin_plan},
    Command{"compare.numbers", "Compare the numbers of both plans", "View", "",
            "Enlarges the numbers: where the run of this plan differs from that of the other one.",
            differs_across_plans,
            [](AppState& s) {
              s.is_beside_b = true;
              s.is_by_step = false;
              s.focus_view = ViewKind::numbers;
              s.is_enlarged = true;
            }},
    Command{"compare.unpin", "Unpin all", "View", "Shift+P", "Unpins all plans.",
            [](const AppState& s) { return !s.pinned.empty(); },
            [](AppState& s) { s.pinned.clear(); }},
    Command{
        "mask.order", "Mask by rank / by token", "View", "O",
        "Shows the tokens of each rank together, in local order, or in the order of the sequence.",
        has_plan, [](AppState& s) { s.is_by_rank = !s.is_by_rank; }},
    Command{"mask.colors", "Colours of the mask", "View", "M",
            "Colours the mask by class, by the rank that owns the query, or by step.", has_plan,
            [](AppState& s) {
              const auto next = (static_cast<size_t>(s.mask_colors) + 1) % kMaskColors.size();
              s.mask_colors = kMaskColors[next];
            }},
    Command{
        "keys.next", "Next panel for the keyboard", "View", "F6",
        "Tab, arrows, Enter and Space go to the fields of the scenario, then to the lesson, then "
        "to the views again.",
        always, give_keys_to_next},
    Command{"keys.menus", "Open the menus", "View", "F10",
            "Opens the first menu; arrows move and Enter chooses.", always,
            [](AppState& s) { s.opens_menus = true; }},
    Command{"theme.next", "Next theme", "View", "Ctrl+T", "Dark, light, print.", always,
            next_theme},
    Command{"theme.dark", "Dark theme", "View", "", "For screens.", always,
            [](AppState& s) { s.theme = ThemeName::dark; }},
    Command{"theme.light", "Light theme", "View", "", "For bright rooms.", always,
            [](AppState& s) { s.theme = ThemeName::light; }},
    Command{"theme.print", "Print theme", "View", "", "For paper.", always,
            [](AppState& s) { s.theme = ThemeName::print; }},

    Command{"run.cpu", "Run on cpu", "Run", "R",
            "Executes the plan on this machine's CPU and compares it with the oracle.",
            [](const AppState& s) { return can_run_on(s, "cpu"); },
            [](AppState& s) { start_run(s, "cpu", false); }},
    Command{"run.cpu_b", "Run on cpu as B", "Run", "Shift+R",
            "The same, stored as run B for comparison with run A.",
            [](const AppState& s) { return can_run_on(s, "cpu"); },
            [](AppState& s) { start_run(s, "cpu", true); }},
    Command{"run.cuda", "Run on cuda", "Run", "",
            "Executes the plan on this machine's GPU and compares it with the oracle.",
            [](const AppState& s) { return can_run_on(s, "cuda"); },
            [](AppState& s) { start_run(s, "cuda", false); }},
    Command{"run.cuda_b", "Run on cuda as B", "Run", "",
            "The same, stored as run B for comparison with run A.",
            [](const AppState& s) { return can_run_on(s, "cuda"); },
            [](AppState& s) { start_run(s, "cuda", true); }},
    Command{"run.cancel", "Cancel", "Run", "Ctrl+.",
            "Ends the run in progress, or the file that is being written.", is_working, cancel_job},
    Command{"run.swap", "Swap runs A and B", "Run", "B", "Swaps runs A and B.", has_runs,
            swap_runs},
    Command{"run.forget", "Forget both runs", "Run", "", "Closes runs A and B.", has_runs,
            [](AppState& s) {
              s.run_a = s.run_b = nullptr;
              s.run_a_plan = s.run_b_plan = nullptr;
            }},

    Command{"help.keys", "Keys, colours and words", "Help", "F1 ?",
            "Lists all commands and shortcuts, the colours of highlights, and what words mean.",
            always, show<Dialog::help>},
    Command{"lesson.list", "Lessons...", "Help", "L", "Lists the lessons.", always,
            show<Dialog::lessons>},
    Command{"lesson.next", "Next page", "Help", "PageDown", "Turns to the next page.", has_lesson,
            [](AppState& s) { next_page(s); }},
    Command{"lesson.previous", "Previous page", "Help", "PageUp", "Turns to the page before.",
            has_lesson, [](AppState& s) { previous_page(s); }},
    Command{"lesson.check", "Check the answer", "Help", "",
            "Compares what you chose or typed with the plan.", can_check, check_answer},
    Command{"lesson.hint", "Hint", "Help", "", "Shows a hint for the question of the page.",
            has_question, [](AppState& s) { s.answer.shows_hint = true; }},
    Command{"lesson.answer", "Show the answer", "Help", "",
            "Answers the question of the page, and says why.", has_question, show_answer},
    Command{"lesson.fault", "Run with this fault", "Help", "",
            "Runs the plan with the fault of the page as run A, then without it as run B: the "
            "numbers show the map that goes wrong, and the right one.",
            [](const AppState& s) {
              const LessonStep* step = current_step(s);
              return step != nullptr && step->fault != nullptr && can_run_on(s, "cpu") &&
                     s.plan() == s.lesson_plan.get();
            },
            [](AppState& s) { run_fault(s, current_step(s)->fault->name); }},
    Command{"lesson.close", "Close the lesson", "Help", "", "Leaves the lesson.", has_lesson,
            close_lesson},
};

}  // namespace

std::span<const Command> all_commands() { return kTable; }

}  // namespace cpscope::gui
