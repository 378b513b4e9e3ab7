#include "gui/window/services.h"

#include "gui/app/run_views.h"
#include "sim/clock/cluster.h"
#include "sim/run/record/run_record.h"
#include "sim/scenario/scenario_folder.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

namespace cpscope::gui {
namespace {

namespace fs = std::filesystem;

/// Names of the scenarios in a folder, sorted.
std::vector<std::string> list_scenarios(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code failed;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, failed))
    if (entry.path().extension() == ".toml") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<std::string> read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

bool open_with_record(AppState& state, const std::string& path) {
  const Result<RunRecord> record = read_record(path);
  if (!record) {
    tell(state, to_text(record.error()), true);
    return false;
  }
  const std::string& text = record.value().scenario_text;
  if (!text.empty() && (!state.document.is_open() || state.document.text() != text)) {
    if (const auto error = state.document.load_text(text, "")) {
      tell(state, "The scenario in " + path + " cannot be opened: " + to_text(*error), true);
      return false;
    }
    state.begins = true;
  }
  // A record is compared with a plan, so the plan must be ready first.
  settle(state);
  const bool has_run_a = state.run_a != nullptr && state.run_a_plan == state.document.plan();
  open_record(state, path, has_run_a);
  return true;
}

bool open_state(AppState& state, const std::string& path) {
  const std::optional<std::string> text = read_text(path);
  if (!text) {
    tell(state, "The state cannot be read: " + path, true);
    return false;
  }
  if (const auto error = load_state(state, *text, path)) {
    tell(state, to_text(*error), true);
    return false;
  }
  return true;
}

}  // namespace

void plug_in(AppState& state, Toolbox& toolbox) {
  const fs::path folder = shipped_scenarios();
  Services& services = state.services;
  services.scenario_folder = folder.string();
  services.scenario_names = list_scenarios(folder);
  const std::string clusters = (folder / "clusters").string();
  for (const std::string& name : list_clusters(clusters)) {
    // A file that another process is still writing must not prevent the window from opening.
    if (Result<Cluster> cluster = load_cluster(name, clusters))
      services.clusters.push_back(std::move(cluster).value());
  }
  services.scenario_source = [folder](std::string_view name) {
    return read_text(folder / (std::string(name) + ".toml"));
  };
  services.run = make_runner(toolbox);
  services.read_record = make_record_reader(toolbox);
  for (const auto& executor : toolbox.executors)
    if (!executor->absence()) services.executors.push_back(executor->name());
}

bool open_path(AppState& state, const std::string& path) {
  if (path.ends_with(".safetensors")) return open_with_record(state, path);
  if (path.ends_with(".json")) return open_state(state, path);
  return open_scenario(state, path);
}

void open_dropped(AppState& state, std::deque<std::string>& paths) {
  while (!paths.empty() && !state.job.task.is_running()) {
    const std::string path = std::move(paths.front());
    paths.pop_front();
    open_path(state, path);
  }
}

}  // namespace cpscope::gui
