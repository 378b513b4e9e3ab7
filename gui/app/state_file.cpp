#include "gui/app/app_state.h"
#include "gui/app/document/target_json.h"
#include "gui/app/lesson.h"
#include "gui/app/prediction.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace cpscope::gui {
namespace {

constexpr int kSchema = 1;
constexpr std::array<std::string_view, 10> kDialogNames = {
    "none", "open_file", "save_file",   "open_record", "find",
    "help", "lessons",   "export_file", "unsaved",     "welcome"};

StateJson write_span(AxisSpan span) { return StateJson::array({span.lo, span.hi}); }

StateJson write_cameras(const AppState& state) {
  StateJson cameras;
  for (const ViewKind kind : kViewKinds) {
    const Camera& camera = state.camera(kind);
    cameras[std::string(to_name(kind))] = {{"x", write_span(camera.x)},
                                           {"y", write_span(camera.y)}};
  }
  return cameras;
}

void read_span(JsonReader& reader, std::string_view key, AxisSpan& span) {
  const StateJson* value = reader.find(key);
  if (value == nullptr) return;
  const bool is_pair =
      value->is_array() && value->size() == 2 && (*value)[0].is_number() && (*value)[1].is_number();
  if (is_pair) span = {(*value)[0].get<double>(), (*value)[1].get<double>()};
  if (!is_pair || !(span.lo >= 0.0 && span.lo < span.hi && span.hi <= 1.0))
    reader.fail(key, "is no span [lo, hi] with 0 <= lo < hi <= 1");
}

void read_cameras(JsonReader reader, std::array<Camera, kViewKinds.size()>& cameras) {
  for (const ViewKind kind : kViewKinds) {
    JsonReader camera = reader.table(to_name(kind));
    read_span(camera, "x", cameras[static_cast<size_t>(kind)].x);
    read_span(camera, "y", cameras[static_cast<size_t>(kind)].y);
    camera.finish();
  }
  reader.finish();
}

/// The content of a state file before it is validated.
struct WantedState {
  std::string scenario, path, order, cluster, stack;
  ThemeName theme = ThemeName::dark;
  Playhead playhead;
  double speed = 1.0;
  std::array<Camera, kViewKinds.size()> cameras{};
  Target selection;
  std::optional<ViewKind> focus_view;
  bool is_enlarged = false, is_cumulative = false, shows_time = false, is_by_step = false,
       is_beside_b = false, shows_ways = false, is_by_rank = false;
  MaskColors mask_colors = MaskColors::classes;
  Borders borders;
  int64_t focus_rank = 0, other_rank = -1, tensor = 0, lesson = -1, lesson_step = 0;
  Dialog dialog = Dialog::none;
};

void read_playhead(JsonReader reader, Playhead& playhead) {
  std::string unit;
  int64_t index = 0;
  reader.text("unit", unit);
  if (unit != "step" && unit != "stage") reader.fail("unit", "is neither step nor stage");
  reader.integer("index", 0, INT32_MAX, index);
  reader.number("progress", 0.0, 1.0, playhead.progress);
  playhead.is_by_stage = unit == "stage";
  playhead.index = static_cast<int32_t>(index);
  reader.finish();
}

void read_focus(JsonReader& reader, WantedState& wanted) {
  std::string name;
  reader.text("focus_view", name);
  for (const ViewKind kind : kViewKinds) {
    if (to_name(kind) == name) wanted.focus_view = kind;
  }
  if (!wanted.focus_view && !name.empty()) reader.fail("focus_view", "is no view");
}

void read_mask_colors(JsonReader& reader, WantedState& wanted) {
  std::string name(to_name(wanted.mask_colors));
  reader.optional_text("mask_colors", name);
  const auto it = std::find_if(kMaskColors.begin(), kMaskColors.end(),
                               [&](MaskColors colors) { return to_name(colors) == name; });
  if (it == kMaskColors.end())
    reader.fail("mask_colors", "is neither class, owner nor step");
  else
    wanted.mask_colors = *it;
}

void read_borders(JsonReader& reader, Borders& borders) {
  std::vector<double> numbers;
  reader.optional_numbers("borders", numbers);
  if (numbers.empty()) return;
  std::array<float, 6> shares{};
  if (numbers.size() == shares.size())
    std::transform(numbers.begin(), numbers.end(), shares.begin(),
                   [](double number) { return static_cast<float>(number); });
  if (const auto parsed = parse_borders(shares))
    borders = *parsed;
  else
    reader.fail("borders", "are no six shares that leave every view some room");
}

WantedState read_wanted(JsonReader reader) {
  WantedState wanted;
  int64_t schema = 0;
  reader.integer("schema", kSchema, kSchema, schema);
  reader.text("scenario", wanted.scenario);
  reader.text("path", wanted.path);
  reader.optional_text("order", wanted.order);
  std::string theme, dialog;
  reader.text("theme", theme);
  if (const auto named = parse_theme(theme))
    wanted.theme = *named;
  else
    reader.fail("theme", "is no theme");
  read_playhead(reader.table("playhead"), wanted.playhead);
  reader.number("speed", 1.0 / 16, 256.0, wanted.speed);
  read_cameras(reader.table("cameras"), wanted.cameras);
  read_target(reader.table("selection"), wanted.selection);
  read_focus(reader, wanted);
  reader.boolean("is_enlarged", wanted.is_enlarged);
  reader.integer("focus_rank", 0, kMaxRanks, wanted.focus_rank);
  reader.integer("other_rank", -1, kMaxRanks, wanted.other_rank);
  reader.integer("tensor", 0, static_cast<int64_t>(kErrorTensors.size()) - 1, wanted.tensor);
  reader.boolean("is_cumulative", wanted.is_cumulative);
  reader.boolean("shows_time", wanted.shows_time);
  reader.optional_text("cluster", wanted.cluster);
  reader.optional_text("stack", wanted.stack);
  reader.optional_boolean("shows_ways", wanted.shows_ways);
  reader.optional_boolean("is_by_rank", wanted.is_by_rank);
  read_mask_colors(reader, wanted);
  read_borders(reader, wanted.borders);
  reader.boolean("is_by_step", wanted.is_by_step);
  reader.boolean("is_beside_b", wanted.is_beside_b);
  reader.text("dialog", dialog);
  const auto it = std::find(kDialogNames.begin(), kDialogNames.end(), dialog);
  if (it == kDialogNames.end())
    reader.fail("dialog", "is no dialog");
  else
    wanted.dialog = static_cast<Dialog>(it - kDialogNames.begin());
  reader.integer("lesson", -1, INT32_MAX, wanted.lesson);
  reader.integer("lesson_step", 0, INT32_MAX, wanted.lesson_step);
  reader.finish();
  return wanted;
}

Error bad_state(const std::string& what, const std::string& path) {
  return make_error(ErrorKind::bad_input, what,
                    "save a state with a screenshot and change that one", path);
}

/// True if the lesson page exists.
bool has_page(const WantedState& wanted) {
  const auto lessons = all_lessons();
  if (wanted.lesson < 0) return wanted.lesson_step == 0;
  return wanted.lesson < static_cast<int64_t>(lessons.size()) &&
         wanted.lesson_step <
             static_cast<int64_t>(lessons[static_cast<size_t>(wanted.lesson)].steps.size());
}

/// Checks that need the plan. Returns what does not fit, or an empty string.
std::string find_misfit(const WantedState& wanted, const PlanIndex& plan) {
  if (wanted.playhead.index >= count_places(plan, wanted.playhead.is_by_stage))
    return "playhead.index is beyond the last place: " + std::to_string(wanted.playhead.index);
  if (wanted.focus_rank >= plan.num_ranks())
    return "focus_rank is no rank: " + std::to_string(wanted.focus_rank);
  if (wanted.other_rank >= plan.num_ranks())
    return "other_rank is no rank: " + std::to_string(wanted.other_rank);
  if (!is_present(plan, wanted.selection)) return "selection names what the plan does not have";
  return "";
}

void take_over(AppState& state, WantedState wanted, Document document) {
  state.document = std::move(document);
  state.theme = wanted.theme;
  state.playhead = wanted.playhead;
  state.begins = false;
  state.player = Player{};
  state.player.speed = wanted.speed;
  state.cameras = wanted.cameras;
  state.selection = SelectionHistory{};
  state.selection.targets = {wanted.selection};
  state.hovered = Target{};
  state.focus_view = wanted.focus_view;
  state.is_enlarged = wanted.is_enlarged;
  state.focus_rank = static_cast<int32_t>(wanted.focus_rank);
  state.other_rank = static_cast<int32_t>(wanted.other_rank);
  state.tensor = static_cast<int32_t>(wanted.tensor);
  state.is_cumulative = wanted.is_cumulative;
  choose_cluster(state, wanted.cluster, wanted.stack);
  state.shows_time = wanted.shows_time;
  state.is_by_rank = wanted.is_by_rank;
  state.mask_colors = wanted.mask_colors;
  state.borders = wanted.borders;
  state.shows_ways = wanted.shows_ways;
  state.is_by_step = wanted.is_by_step;
  state.is_beside_b = wanted.is_beside_b;
  state.dialog = wanted.dialog;
  restore_lesson(state,
                 {static_cast<int32_t>(wanted.lesson), static_cast<int32_t>(wanted.lesson_step)});
}

}  // namespace

std::string save_state(const AppState& state) {
  StateJson json;
  const bool is_open = state.document.is_open();
  json["schema"] = kSchema;
  json["scenario"] = is_open ? state.document.text() : "";
  json["path"] = state.document.path();
  if (const std::string order = state.document.moved_order(); !order.empty()) json["order"] = order;
  json["theme"] = to_name(state.theme);
  json["playhead"] = {{"unit", state.playhead.is_by_stage ? "stage" : "step"},
                      {"index", state.playhead.index},
                      {"progress", state.playhead.progress}};
  json["speed"] = std::abs(state.player.speed);
  json["cameras"] = write_cameras(state);
  json["selection"] = write_target(state.selected());
  json["focus_view"] = state.focus_view ? to_name(*state.focus_view) : "";
  json["is_enlarged"] = state.is_enlarged;
  json["focus_rank"] = state.focus_rank;
  json["other_rank"] = state.other_rank;
  json["tensor"] = state.tensor;
  json["is_cumulative"] = state.is_cumulative;
  json["shows_time"] = state.shows_time;
  if (!state.prediction.cluster.empty()) {
    json["cluster"] = state.prediction.cluster;
    json["stack"] = state.prediction.stack;
  }
  if (state.shows_ways) json["shows_ways"] = true;
  if (state.is_by_rank) json["is_by_rank"] = true;
  if (state.mask_colors != MaskColors::classes) json["mask_colors"] = to_name(state.mask_colors);
  if (state.borders != Borders{}) json["borders"] = to_numbers(state.borders);
  json["is_by_step"] = state.is_by_step;
  json["is_beside_b"] = state.is_beside_b;
  json["dialog"] = kDialogNames[static_cast<size_t>(state.dialog)];
  json["lesson"] = state.lesson.lesson;
  json["lesson_step"] = state.lesson.step;
  return json.dump(2, ' ', true, StateJson::error_handler_t::replace) + "\n";
}

std::optional<Error> load_state(AppState& state, std::string_view json, const std::string& path) {
  const StateJson root = StateJson::parse(json, nullptr, false);
  if (root.is_discarded()) return bad_state("The state is no JSON", path);
  std::string problem;
  WantedState wanted = read_wanted(JsonReader(&root, "", &problem));
  if (!problem.empty()) return bad_state(problem, path);
  if (!has_page(wanted)) return bad_state("lesson and lesson_step name no page", path);
  Document document;
  if (!wanted.scenario.empty()) {
    if (auto error = wanted.order.empty()
                         ? document.load_text(wanted.scenario, wanted.path)
                         : document.load_with_order(wanted.scenario, wanted.path, wanted.order))
      return error;
    document.wait();
    if (document.refusal()) return document.refusal();
    if (std::string misfit = find_misfit(wanted, *document.plan()); !misfit.empty())
      return bad_state(misfit, path);
  }
  take_over(state, std::move(wanted), std::move(document));
  return std::nullopt;
}

}  // namespace cpscope::gui
