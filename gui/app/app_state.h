#pragma once

#include "gui/app/document.h"
#include "gui/app/player.h"
#include "gui/draw/theme.h"
#include "gui/model/view.h"
#include "sim/base/result.h"
#include "sim/clock/candidates.h"
#include "sim/clock/cluster.h"

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope::gui {

using SharedRun = std::shared_ptr<const RunView>;

/// Carries out the wanted scenario on an executor and compares it with the oracle. Plugged in by
/// who owns executors; runs in the background, so it must look at control.is_stopped now and then.
using Runner = std::function<Result<SharedRun>(const std::string& executor, const SharedPlan& plan,
                                               TaskControl& control)>;
/// Opens a record for the plan and compares it with the oracle.
using RecordReader = std::function<Result<SharedRun>(const std::string& path,
                                                     const SharedPlan& plan, TaskControl& control)>;
/// Text of a shipped scenario ("zigzag"), from a file or from the program itself; nothing when
/// there is none of that name.
using ScenarioSource = std::function<std::optional<std::string>(std::string_view name)>;

/// What the window was given from outside. Every part may be missing.
struct Services {
  Runner run;
  RecordReader read_record;
  ScenarioSource scenario_source;
  std::vector<std::string> scenario_names;  // what scenario_source knows, in menu order
  std::vector<std::string> executors;       // what Runner knows, e.g. cpu, cuda
  std::vector<Cluster> clusters;            // whose times can be predicted, in menu order
  std::string scenario_folder;              // where names inside shipped scenarios start from
  bool has_files = true;                    // false: files are neither read nor written
  bool is_page = false;  // a web page: files are dropped on it, what it writes becomes a download
};

enum class Dialog : uint8_t {
  none,
  open_file,
  save_file,
  open_record,
  find,
  help,
  lessons,
  export_file,
  unsaved
};

/// What the frame is asked to write once it is painted: a PNG of the window and its state, or the
/// focused view alone (AppState::wish_path).
enum class ExportWish : uint8_t { none, screenshot, picture };

/// Something to tell the user: bad news stays until it is dismissed.
struct Message {
  std::string text;
  bool is_error = false;

  friend bool operator==(const Message&, const Message&) = default;
};

/// Which lesson is open and at which of its steps; -1 when none.
struct LessonPlace {
  int32_t lesson = -1;
  int32_t step = 0;

  friend bool operator==(const LessonPlace&, const LessonPlace&) = default;
};

/// Selections in the order in which they were made. Selecting after going back drops what came
/// later, as in a browser.
struct SelectionHistory {
  std::vector<Target> targets = {Target{}};
  size_t at = 0;

  static constexpr size_t kMost = 200;
  const Target& current() const { return targets[at]; }
};

/// The run in progress.
struct Job {
  Task<Result<SharedRun>> task;
  std::string title;  // "Running on cpu"
  bool is_b = false;  // goes to slot B
  SharedPlan plan;    // what it runs
};

/// Figures on their way into a file.
struct Saving {
  Task<std::optional<Error>> task;
  std::string path;
};

/// Run A beside run B, made in the background as soon as both are there.
struct Comparison {
  Task<Result<SharedRun>> task;
  SharedRun a, b;  // what is compared
  SharedRun view;  // null until it is made, or when it cannot be
};

/// Predicted times of the plan, made in the background whenever it is another (prediction.h).
struct Prediction {
  std::string cluster, stack;  // of Services::clusters; empty: none is wanted
  Task<Result<SharedRun>> task;
  SharedPlan wanted_plan;  // whose times are being predicted, or were last
  SharedPlan plan;         // whose times `run` tells
  SharedRun run;           // null until it is made, or when it cannot be
  std::string refusal;     // then why
};

using SharedCandidates = std::shared_ptr<const Candidates>;

/// Ways to split one batch on one cluster, side by side.
struct ComparedWays {
  Scenario scenario;  // whose batch; the way that it takes itself does not matter
  std::string cluster, stack;
  SharedCandidates candidates;  // null when they cannot be compared
  std::string refusal;          // then why
};

/// A comparison on its way: the first `tried` candidates are planned and predicted.
struct TriedWays {
  Candidates candidates;
  int64_t tried = 0;
};

/// The page of ways, compared in the background while it is open (ways.h).
struct Ways {
  Task<Result<TriedWays>> task;
  ComparedWays wanted;             // what the task compares
  double share = 0;                // of the candidates that earlier tasks have tried
  std::vector<ComparedWays> kept;  // the last few, the one that is shown at the end
  int64_t hovered = -1;            // candidate under the mouse: written by a frame for the next
};

/// Everything that the window shows, besides pixels. Changed through commands (command.h) and the
/// functions below.
struct AppState {
  Document document;
  Services services;
  ThemeName theme = ThemeName::dark;
  Playhead playhead;
  bool begins = false;  // the playhead goes to the first place of the plan that is being made
  Player player;
  std::array<Camera, kViewKinds.size()> cameras{};  // [ViewKind]
  SelectionHistory selection;
  Target hovered;                      // written by this frame, shown by the next
  std::optional<ViewKind> focus_view;  // keyboard focus: what F and the arrows act on
  bool is_enlarged = false;            // focus_view fills the window
  int32_t focus_rank = 0;
  int32_t other_rank = -1;  // compared with focus_rank; -1 none
  int32_t tensor = 0;       // in kErrorTensors
  bool is_cumulative = false;
  bool shows_time = false;
  SharedRun run_a, run_b;
  SharedPlan run_a_plan, run_b_plan;  // what each run ran
  Comparison comparison;
  Prediction prediction;
  bool shows_ways = false;  // the page of ways instead of the views
  Ways ways;
  bool is_by_step = false;   // numbers: what the step of now wrote instead of the answer
  bool is_beside_b = false;  // numbers: run A beside run B instead of the oracle
  SharedPlan pinned;         // another plan, shown above this one to compare; may be null
  Job job;
  Saving saving;
  Dialog dialog = Dialog::none;
  ExportWish wish = ExportWish::none;
  std::string wish_path;  // ends in .svg or .png
  LessonPlace lesson;
  SharedPlan lesson_plan;  // what the open page was opened with
  std::vector<Message> messages;
  bool wants_quit = false;
  bool quits_when_saved = false;  // the name of the file is asked for on the way out
  double now_s = 0.0;             // time of this frame; the only clock

  const PlanIndex* plan() const { return document.plan().get(); }
  Camera& camera(ViewKind kind) { return cameras[static_cast<size_t>(kind)]; }
  const Camera& camera(ViewKind kind) const { return cameras[static_cast<size_t>(kind)]; }
  const Target& selected() const { return selection.current(); }
};

/// Once a frame, before anything is drawn: takes over finished work, moves the playhead, and keeps
/// every number inside the plan that is shown.
void update(AppState& state, double now_s);
/// Waits for planning, so that pictures and tests see the end.
void settle(AppState& state);

/// Opens a file; what is wrong becomes a message.
bool open_scenario(AppState& state, const std::string& path);
/// Opens a shipped scenario by name.
bool open_shipped(AppState& state, std::string_view name);
/// Opens a scenario that no file holds; `name` is where saving it would be offered.
bool open_text(AppState& state, const std::string& text, const std::string& name);
void edit_scenario(AppState& state, Scenario scenario, std::string_view key);
void undo_edit(AppState& state);
void redo_edit(AppState& state);

void select(AppState& state, const Target& target);
void select_previous(AppState& state);  // Alt-Left
void select_next(AppState& state);      // Alt-Right
/// Does what the target names exist in the shown plan?
bool is_present(const PlanIndex& plan, const Target& target);

/// Selection and hover as views want them. Kept by the caller over a frame.
struct Projections {
  Projection selected, hovered;
};
Projections project_all(const AppState& state);
/// What a view depends on, without size, text_width, memo and projections.
ViewInput view_input(const AppState& state, ViewKind kind);
/// The same view of the pinned plan, at the same step or its last one.
ViewInput view_input_pinned(const AppState& state, ViewKind kind);

void start_run(AppState& state, const std::string& executor, bool is_b);
void open_record(AppState& state, const std::string& path, bool is_b);
/// The run in progress; without one, the file that is being written.
void cancel_job(AppState& state);
/// Is there something that cancel_job() would end?
bool is_working(const AppState& state);

/// Ends the window, unless the scenario has changes that no file has: then it asks.
void ask_to_quit(AppState& state);
/// Saves, also on the way out. A scenario without a file asks for a name. False when that was not
/// possible.
bool save_scenario(AppState& state, const std::string& path);
void tell(AppState& state, std::string text, bool is_error = false);

/// Everything that makes a picture: scenario text, playhead, cameras, selection, theme. JSON.
std::string save_state(const AppState& state);
/// Strict: unknown or missing keys and values out of range are errors, and the state stays as it
/// was.
std::optional<Error> load_state(AppState& state, std::string_view json, const std::string& path);

}  // namespace cpscope::gui
