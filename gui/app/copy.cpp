#include "gui/app/copy.h"

#include "gui/app/inspect.h"
#include "gui/app/ways.h"
#include "gui/model/describe.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

/// A word of a command line, quoted where the shell would not keep it as it is.
std::string shell_word(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./,:=+";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

/// The path of the open scenario; of a shipped one the file it was read from.
std::string scenario_path(const AppState& state) {
  const std::string& path = state.document.path();
  if (path.empty()) return "scenario.toml";
  const auto& names = state.services.scenario_names;
  const bool is_shipped = !state.document.has_file() && !state.services.scenario_folder.empty() &&
                          std::find(names.begin(), names.end(),
                                    std::filesystem::path(path).stem().string()) != names.end();
  return is_shipped ? state.services.scenario_folder + "/" + path : path;
}

void copy(AppState& state, std::string text, std::string_view what) {
  state.for_clipboard = std::move(text);
  tell(state, fmt::format("Copied {}", what));
}

}  // namespace

std::string inspector_text(const AppState& state) {
  const Inspection inspection =
      state.shows_ways ? inspect_way(state) : inspect(state, state.selected());
  std::string text = inspection.heading + "\n";
  for (const InspectionRow& row : inspection.rows) {
    if (!row.label.empty()) text += row.label + ": ";
    text += to_text(row.value) + "\n";
  }
  return text;
}

std::string redraw_command(const AppState& state) {
  const PlanIndex& plan = *state.plan();
  const ViewKind kind = state.focus_view.value_or(ViewKind::layout);
  const std::string view(to_name(kind));
  const std::string path = scenario_path(state);
  std::string command =
      fmt::format("cpscope render {} --view {} --step {} --rank {} --theme {}", shell_word(path),
                  view, step_of(plan, state.playhead), state.focus_rank, to_name(state.theme));
  if (is_present(plan, state.selected()) && !std::holds_alternative<Nothing>(state.selected()))
    command += " --select " + shell_word(name_target(state.selected(), &plan));
  if (kind == ViewKind::numbers) {
    command += fmt::format(" --tensor {}", kErrorTensors[static_cast<size_t>(state.tensor)]);
    if (state.is_by_step) command += " --per-step";
  }
  const Prediction& prediction = state.prediction;
  if (kind == ViewKind::timeline && state.shows_time && !prediction.cluster.empty())
    command += fmt::format(" --cluster {} --stack {}", shell_word(prediction.cluster),
                           shell_word(prediction.stack));
  const std::string stem = std::filesystem::path(path).stem().string();
  return command + " --out " + shell_word(stem + "-" + view + ".png");
}

void copy_inspector(AppState& state) { copy(state, inspector_text(state), "the inspector's text"); }

void copy_command(AppState& state) {
  copy(state, redraw_command(state),
       state.document.is_modified()
           ? "the command. The scenario has unsaved changes: save it before you run the command"
           : "the command that draws this view");
}

void copy_scenario(AppState& state) { copy(state, state.document.text(), "the scenario as TOML"); }

}  // namespace cpscope::gui
