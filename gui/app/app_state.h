#pragma once

#include "gui/app/document/document.h"
#include "gui/app/document/player.h"
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

/// Executes the scenario on an executor and compares the result with the oracle. The owner of the
/// executors provides it. It runs in the background, so it must check control.is_stopped regularly.
using Runner = std::function<Result<SharedRun>(const std::string& executor, const SharedPlan& plan,
                                               TaskControl& control)>;
/// Opens a record for the plan and compares it with the oracle.
using RecordReader = std::function<Result<SharedRun>(const std::string& path,
                                                     const SharedPlan& plan, TaskControl& control)>;
/// The executor of a fault of the gallery is called so, with the fault's name after it.
inline constexpr std::string_view kFaultExecutor = "fault:";
/// What the name of its run begins with.
inline constexpr std::string_view kFaultRun = "with the fault";

/// A run, or a record to be judged.
struct RunOrder {
  std::string executor;  // empty: `record` is read
  std::string record;    // path
  SharedPlan plan;
};
using RunElsewhere = std::function<Task<Result<SharedRun>>::Poll(const RunOrder& order)>;
/// Text of a shipped scenario ("zigzag"), from a file or embedded in the program; nothing when no
/// scenario has that name.
using ScenarioSource = std::function<std::optional<std::string>(std::string_view name)>;

/// What the window gets from outside. Every part may be missing.
struct Services {
  Runner run;
  RecordReader read_record;
  RunElsewhere run_elsewhere;  // takes the place of `run` and `read_record` where there is one
  ScenarioSource scenario_source;
  std::vector<std::string> scenario_names;  // names that scenario_source knows, in menu order
  std::vector<std::string> executors;       // names that Runner knows, e.g. cpu, cuda
  std::vector<Cluster> clusters;            // clusters with predictable times, in menu order
  std::string scenario_folder;              // base folder of names inside shipped scenarios
  bool has_files = true;                    // false: files are neither read nor written
  bool has_full_screen = false;             // the window can fill a monitor
  bool is_page = false;  // a web page: users drop files on it, and files it writes become downloads
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
  unsaved,
  welcome
};

/// Where the borders of the panels stand, as shares of the window (side) or of the area of the six
/// views: layout, mask, traffic above, timeline, numbers, balance below.
struct Borders {
  static constexpr float kLeast = 0.12F;  // share that every view keeps
  float side = 0;  // between the scenario and the views; 0: as wide as the scenario needs
  float rows = 0.56F;
  float top_left = 0.40F, top_right = 0.71F;
  float bottom_left = 0.46F, bottom_right = 0.74F;

  friend bool operator==(const Borders&, const Borders&) = default;
};

/// Borders that give one view most of the room; the others stay in sight.
Borders borders_around(ViewKind kind);
/// The same as six numbers, in the order of the fields, for files.
std::array<float, 6> to_numbers(const Borders& borders);
/// Nothing if a view would have no room.
std::optional<Borders> parse_borders(const std::array<float, 6>& numbers);

/// What to write once the frame is painted: a PNG of the window and its state, or only the focused
/// view (AppState::wish_path), or of a web page the address that makes it again, to the clipboard.
enum class ExportWish : uint8_t { none, screenshot, picture, link };

/// Where keys go that are no shortcuts: Tab, arrows, Enter and Space of a panel with fields.
enum class KeyArea : uint8_t { views, scenario, lesson };

/// A message to the user; an error stays until it is dismissed, others for kMessageSeconds.
struct Message {
  std::string text;
  bool is_error = false;
  double since_s = 0;  // of AppState::now_s

  friend bool operator==(const Message&, const Message&) = default;
};

/// Limit of the plans that are pinned: with the shown one four are compared.
inline constexpr size_t kMostPinned = 3;

inline constexpr float kMostMagnification = 2.5F;
inline constexpr double kMessageSeconds = 12;

/// The open lesson and its open step; lesson is -1 when none is open.
struct LessonPlace {
  int32_t lesson = -1;
  int32_t step = 0;

  friend bool operator==(const LessonPlace&, const LessonPlace&) = default;
};

/// What the reader has answered to the question of the open lesson page.
struct LessonAnswer {
  std::vector<int32_t> ranks;  // chosen, ascending
  std::string typed;
  bool is_checked = false;  // false again after every change
  bool shows_hint = false;
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
  bool is_b = false;  // the result goes to slot B
  SharedPlan plan;    // the plan that is run
  std::string next;   // executor of a run that follows as run B; empty: none follows
};

/// A CSV file that is being written in the background.
struct Saving {
  Task<std::optional<Error>> task;
  std::string path;
};

/// Two runs, the first of them of the plan that is shown.
struct ComparedRuns {
  SharedRun own, other;  // null: there are no two runs to compare
  SharedPlan own_plan, other_plan;

  friend bool operator==(const ComparedRuns&, const ComparedRuns&) = default;
};

/// One run compared with another, computed in the background as soon as both exist: A with B of one
/// plan, or the run of the shown plan with that of another plan of the same batch.
struct Comparison {
  Task<Result<SharedRun>> task;
  ComparedRuns runs;        // that are compared
  SharedRun view;           // null until it is ready, or when the runs cannot be compared
  bool is_refused = false;  // the two plans answer different questions
};

/// Predicted times of the plan, computed in the background whenever the plan changes
/// (prediction.h).
struct Prediction {
  std::string cluster, stack;  // names from Services::clusters; empty: no prediction is requested
  Task<Result<SharedRun>> task;
  SharedPlan wanted_plan;  // the plan of the current or last prediction
  SharedPlan plan;         // the plan that `run` belongs to
  SharedRun run;           // null until it is ready, or when there is no prediction
  std::string refusal;     // then the reason
  // Plans that are pinned, with their times; null where there is no prediction.
  std::vector<std::pair<SharedPlan, SharedRun>> pinned;
  SharedPlan in_hand;  // the plan that the task predicts
};

using SharedCandidates = std::shared_ptr<const Candidates>;

/// All ways to split one batch on one cluster.
struct ComparedWays {
  Scenario scenario;  // defines the batch; its own way of splitting does not matter
  std::string cluster, stack;
  SharedCandidates candidates;  // null when they cannot be compared
  std::string refusal;          // then the reason
};

/// A comparison that is not finished: the first `tried` candidates are planned and predicted.
struct TriedWays {
  Candidates candidates;
  int64_t tried = 0;
};

/// The page of ways. While it is open, the comparison runs in the background (ways.h).
struct Ways {
  Task<Result<TriedWays>> task;
  ComparedWays wanted;             // the comparison that the task computes
  double share = 0;                // share of the candidates that earlier tasks have tried
  std::vector<ComparedWays> kept;  // the last few comparisons; the one shown is the last
  int64_t hovered = -1;  // candidate under the mouse: written by one frame, read by the next
};

/// Everything that the window shows, except pixels. Changed through commands (command.h) and the
/// functions below.
struct AppState {
  Document document;
  Services services;
  ThemeName theme = ThemeName::dark;
  Playhead playhead;
  bool begins = false;  // the playhead goes to the first place of the plan once that plan is ready
  Player player;
  std::array<Camera, kViewKinds.size()> cameras{};  // [ViewKind]
  SelectionHistory selection;
  Target hovered;                      // written by this frame, shown by the next
  std::optional<ViewKind> focus_view;  // keyboard focus: what F and the arrows act on
  bool is_enlarged = false;            // focus_view fills the window
  std::optional<ViewKind> only_view;   // embedded in another page: this view and its steps alone
  KeyArea key_area = KeyArea::views;
  bool opens_menus = false;  // the first menu opens in the next frame, for the keyboard
  int32_t focus_rank = 0;
  int32_t other_rank = -1;  // rank compared with focus_rank; -1 none
  int32_t tensor = 0;       // index in kErrorTensors
  bool is_cumulative = false;
  bool shows_time = false;
  bool is_by_rank = false;  // mask: the tokens of each rank together
  MaskColors mask_colors = MaskColors::classes;
  SharedRun run_a, run_b;
  SharedPlan run_a_plan, run_b_plan;  // the plan that each run executed
  Comparison comparison;
  Prediction prediction;
  bool shows_ways = false;  // shows the page of ways instead of the views
  Ways ways;
  bool is_by_step = false;   // numbers: what the current step wrote instead of the answer
  bool is_beside_b = false;  // numbers: the run compared with the other one instead of the oracle
  std::vector<SharedPlan> pinned;  // other plans, shown above this one to compare, oldest first
  Job job;
  Saving saving;
  Dialog dialog = Dialog::none;
  ExportWish wish = ExportWish::none;
  std::string wish_path;      // ends in .svg or .png
  std::string for_clipboard;  // copied when the frame is built, then empty
  bool is_full_screen = false;
  Borders borders;
  float magnification = 1;  // of text and lines, for talks: [1, kMostMagnification]
  LessonPlace lesson;
  SharedPlan lesson_plan;  // the plan of the open lesson page when it was opened
  LessonAnswer answer;
  std::vector<Message> messages;
  bool wants_quit = false;
  bool quits_when_saved = false;  // the dialog for the file name was opened by quitting
  double now_s = 0.0;             // time of this frame; the only clock

  const PlanIndex* plan() const { return document.plan().get(); }
  Camera& camera(ViewKind kind) { return cameras[static_cast<size_t>(kind)]; }
  const Camera& camera(ViewKind kind) const { return cameras[static_cast<size_t>(kind)]; }
  const Target& selected() const { return selection.current(); }
};

/// Called once a frame, before drawing: takes over finished work, moves the playhead, and clamps
/// every number to the plan that is shown.
void update(AppState& state, double now_s);
/// Waits until planning is finished, for pictures and tests.
void settle(AppState& state);

/// Opens a file; an error becomes a message.
bool open_scenario(AppState& state, const std::string& path);
/// Opens a shipped scenario by name.
bool open_shipped(AppState& state, std::string_view name);
/// Opens a scenario that is not in a file; saving suggests the path `name`.
bool open_text(AppState& state, const std::string& text, const std::string& name);
void edit_scenario(AppState& state, Scenario scenario, std::string_view key);
void undo_edit(AppState& state);
void redo_edit(AppState& state);

void select(AppState& state, const Target& target);
void select_previous(AppState& state);  // Alt-Left
void select_next(AppState& state);      // Alt-Right
/// True if the shown plan has everything that the target names.
bool is_present(const PlanIndex& plan, const Target& target);

/// Projections of the selection and of the hovered target. The caller keeps them for one frame.
struct Projections {
  Projection selected, hovered;
};
Projections project_all(const AppState& state);
/// The runs that can be compared: those of one plan, A first, or of the shown plan and another one.
ComparedRuns compared_runs(const AppState& state);
/// Keeps the shown plan above the next ones, and its run as run B to compare theirs with. At most
/// kMostPinned plans, each once.
void pin_plan(AppState& state);
/// Everything that a view depends on, except size, text_width, memo and projections.
ViewInput view_input(const AppState& state, ViewKind kind);
/// The same view of a pinned plan, at the same step or its last one.
ViewInput view_input_pinned(const AppState& state, ViewKind kind, size_t which);

void start_run(AppState& state, const std::string& executor, bool is_b);
/// Runs the plan with a fault of the gallery as run A, then without it on the CPU as run B.
void run_fault(AppState& state, std::string_view fault);
void open_record(AppState& state, const std::string& path, bool is_b);
/// Cancels the run in progress; without one, the file that is being written.
void cancel_job(AppState& state);
/// True if cancel_job() would cancel something.
bool is_working(const AppState& state);

/// Closes the window. If the scenario has unsaved changes, it asks first.
void ask_to_quit(AppState& state);
/// Saves the scenario, also while quitting. Opens a dialog for the name when the scenario has no
/// file. Returns false when saving was not possible.
bool save_scenario(AppState& state, const std::string& path);
void tell(AppState& state, std::string text, bool is_error = false);

/// Everything that determines a picture: scenario text, playhead, cameras, selection, theme. JSON.
std::string save_state(const AppState& state);
/// Strict: unknown or missing keys and values out of range are errors, and then the state does not
/// change.
std::optional<Error> load_state(AppState& state, std::string_view json, const std::string& path);

}  // namespace cpscope::gui
