#include "gui/window/open_window.h"

#include "sim/findings/error_document.h"
#include "sim/scenario/scenario_folder.h"

#include <iostream>
#ifdef CPSCOPE_HAS_IMGUI
#include "gui/app/prediction.h"
#include "gui/window/picture_size.h"
#include "gui/window/remembered.h"
#include "gui/window/screenshot.h"
#include "gui/window/seek.h"
#include "gui/window/services.h"
#include "sim/run/grade/case.h"
#ifdef CPSCOPE_HAS_GLFW
#include "gui/window/glfw_window.h"
#endif

#include <chrono>
#include <fstream>
#include <iterator>
#include <thread>
#endif

namespace cpscope::gui {

#ifdef CPSCOPE_HAS_IMGUI
namespace {

/// The scenario that opens when the user names none.
constexpr const char* kFirstScenario = "zigzag";

/// Prepares the requested state and file. An error in a file ends here; a scenario that violates a
/// rule is shown together with the reason.
std::optional<Error> prepare(AppState& state, const WindowRequest& request) {
  if (!request.state_path.empty()) {
    std::ifstream file(request.state_path, std::ios::binary);
    if (!file)
      return make_bad_input("the state cannot be read: " + request.state_path, "check its name");
    const std::string json{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (auto error = load_state(state, json, request.state_path)) return error;
  }
  if (!request.theme.empty()) state.theme = parse_theme(request.theme).value_or(state.theme);
  if (!request.path.empty()) {
    if (!request.path.ends_with(".safetensors")) {
      state.begins = request.state_path.empty();
      return state.document.load(request.path);
    }
    if (open_path(state, request.path)) return std::nullopt;
    return make_bad_input(state.messages.back().text, "");
  }
  if (!state.document.is_open() && state.services.scenario_source(kFirstScenario))
    open_shipped(state, kFirstScenario);
  return std::nullopt;
}

/// Selects the requested cluster; reads its file if it is not a shipped one.
std::optional<Error> choose(AppState& state, const WindowRequest& request) {
  Result<Cluster> cluster = load_cluster(request.cluster, shipped_clusters());
  if (!cluster) return cluster.error();
  const Result<const Stack*> stack = find_stack(cluster.value(), request.stack);
  if (!stack) return stack.error();
  const std::string name = cluster.value().name, stack_name = stack.value()->name;
  std::vector<Cluster>& known = state.services.clusters;
  std::erase_if(known, [&](const Cluster& other) { return other.name == name; });
  known.push_back(std::move(cluster).value());
  choose_cluster(state, name, stack_name);
  return std::nullopt;
}

/// Sets the requested moment and starts the requested run.
std::optional<Error> begin(AppState& state, const WindowRequest& request, Toolbox& toolbox) {
  if (!request.cluster.empty()) {
    if (auto error = choose(state, request)) return error;
  }
  if (!request.step && request.executor.empty() && request.measured.empty()) return std::nullopt;
  settle(state);
  if (state.plan() == nullptr) return state.document.refusal();
  if (!request.measured.empty()) {
    Result<SharedRun> run = load_traces(request.measured, request.layer, state.plan()->plan());
    if (!run) return run.error();
    // A run that is asked for, or a record that was opened, is run A.
    const bool is_b = !request.executor.empty() || state.run_a != nullptr;
    (is_b ? state.run_b : state.run_a) = std::move(run).value();
    (is_b ? state.run_b_plan : state.run_a_plan) = state.document.plan();
    state.shows_time = true;
  }
  if (request.step) {
    if (auto error = seek_named_step(state, *request.step)) return error;
  }
  if (request.executor.empty()) return std::nullopt;
  if (const auto executor = find_executor(toolbox, request.executor); !executor)
    return executor.error();
  start_run(state, request.executor, false);
  return std::nullopt;
}

/// Waits until the run is finished, so that a picture shows its numbers.
void wait_for_run(AppState& state) {
  while (state.job.task.is_running()) {
    update(state, state.now_s);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

int report_unwritten(const Error& error) {
  report(error);
  return 2;  // the user named a wrong path
}

int show(AppState& state, const WindowRequest& request, Size size) {
#ifdef CPSCOPE_HAS_GLFW
  const std::string path = remembered_path();
  if (const auto remembered = read_remembered(path)) {
    // What the user asks for now wins.
    if (request.size.empty()) size = remembered->size;
    if (request.theme.empty() && request.state_path.empty()) state.theme = remembered->theme;
    if (request.state_path.empty()) state.borders = remembered->borders;
  }
  const auto remember = [&](Size last) {
    write_remembered(path, {last, state.theme, state.borders});
  };
  const auto error = show_window(state, {.size = size,
                                         .scale = static_cast<float>(request.scale),
                                         .frames = request.frames,
                                         .watch_folder = request.watch_folder,
                                         .at_end = remember});
  return error ? report(*error) : 0;
#else
  (void)state;
  (void)request;
  (void)size;
  return report(make_error(ErrorKind::unavailable,
                           "this build has no window: it was made without GLFW (package "
                           "libglfw3-dev)",
                           "`cpscope gui --screenshot` and `cpscope render` draw without one"));
#endif
}

}  // namespace
#endif

int open_window(const WindowRequest& request, Toolbox& toolbox) {
#ifdef CPSCOPE_HAS_IMGUI
  ScreenshotOptions options;
  if (!request.size.empty()) {
    const Result<Size> size = read_size(request.size, request.scale > 0 ? request.scale : 1);
    if (!size) return report(size.error());
    options.size = size.value();
  }
  AppState state;
  plug_in(state, toolbox);
  if (const auto error = prepare(state, request)) return report(*error);
  if (const auto error = begin(state, request, toolbox)) return report(*error);
  const bool has_wish = !request.path.empty() || !request.state_path.empty() || request.step ||
                        !request.executor.empty() || !request.measured.empty();
  if (!has_wish) state.dialog = Dialog::welcome;
  if (request.screenshot_path.empty()) return show(state, request, options.size);
  wait_for_run(state);
  if (request.scale > 0) options.scale = static_cast<float>(request.scale);
  if (const auto error = check_folder(request.screenshot_path, "--screenshot"))
    return report(*error);
  const Result<size_t> written = write_screenshot(state, options, request.screenshot_path);
  if (!written) return report_unwritten(written.error());
  std::cout << request.screenshot_path << ": " << written.value() << " bytes\n";
  return 0;
#else
  (void)request;
  (void)toolbox;
  return report(make_error(ErrorKind::unavailable,
                           "this build has no window: it was made without Dear ImGui or libpng "
                           "(packages libimgui-dev, libpng-dev)",
                           "`cpscope render --out X.svg` draws without them"));
#endif
}

}  // namespace cpscope::gui
