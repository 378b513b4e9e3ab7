// The window as a web page: one thread for the frames and a worker for runs, only embedded files,
// WebGL 2. The frame is the same as on a desktop.
#include "gui/web/web_page.h"

#include "gui/app/document/background.h"
#include "gui/app/lesson.h"
#include "gui/app/question.h"
#include "gui/app/run_bytes.h"
#include "gui/app/run_views.h"
#include "gui/panel/fonts.h"
#include "gui/panel/imgui_compat.h"
#include "gui/panel/narrow_panel.h"
#include "gui/panel/screen.h"
#include "gui/panel/textures.h"
#include "gui/window/gl_textures.h"
#include "gui/window/glfw_keys.h"
#include "gui/window/services.h"
#include "gui/window/view_file.h"
#include "sim/base/whole_file.h"
#include "sim/plan/document/load_plan.h"
#include "sim/plan/document/plan_document.h"
#include "sim/run/grade/case.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <GLES3/gl3.h>
#include <GLFW/glfw3.h>
#include <backends/imgui_impl_glfw.h>
#include <backends/imgui_impl_opengl3.h>
#include <emscripten.h>
#include <emscripten/html5.h>
#include <fmt/format.h>
#include <imgui.h>

// The parts of the page outside the canvas (their other side is in shell.html).
EM_JS(double, page_width, (), { return window.innerWidth; });
EM_JS(double, page_height, (), { return window.innerHeight; });
EM_JS(double, page_scale, (), { return window.devicePixelRatio || 1; });
EM_JS(void, hand_over_file, (const char* path), { Module.handOverFile(UTF8ToString(path)); });
EM_JS(void, hand_over_picture, (const char* name), { Module.handOverPicture(UTF8ToString(name)); });
EM_JS(int, begin_work, (const char* executor, const char* record),
      { return Module.beginWork(UTF8ToString(executor), UTF8ToString(record)); });
EM_JS(double, work_progress, (), { return Module.work ? Module.work.progress : 0; });
EM_JS(int, is_work_done, (), { return Module.work && Module.work.isDone ? 1 : 0; });
EM_JS(void, end_work, (int number), { Module.endWork(number); });
// The same in a worker.
EM_JS(void, report_progress, (double share), { postMessage({progress : share}); });

namespace cpscope::gui {
namespace {

namespace fs = std::filesystem;

/// Number of frames after an event, so that its effects settle.
constexpr int kAwakeFrames = 4;
/// Seconds from frame to frame while a worker runs and nothing else happens.
constexpr double kWaitingFrame = 0.2;
/// Files written here become downloads.
constexpr const char* kDownloads = "/downloads";
/// Longer runs than this, about half an hour, are rejected.
constexpr double kMostFlops = 1e12;
/// Where a worker finds its plan and leaves its result; the page has them at the same places.
constexpr const char* kWorkPlan = "/job/plan.json";
constexpr const char* kWorkResult = "/job/result";

class Page {
 public:
  bool open(Toolbox& toolbox);
  void frame();
  void wake() { awake_ = kAwakeFrames; }
  bool is_at_rest() const { return awake_ == 0 && dropped_.empty() && !screen_.is_busy(state_); }
  AppState& state() { return state_; }
  void open_file(const std::string& path) { dropped_.push_back(path); }
  const HitMap& hits() const { return screen_.hits(); }
  int64_t frames() const { return frames_; }

 private:
  void fit();
  void paint();
  void grant_wish();
  void hand_over();

  GLFWwindow* window_ = nullptr;
  int width_ = 0, height_ = 0, awake_ = kAwakeFrames;
  float scale_ = 0;
  int64_t frames_ = 0;
  double painted_s_ = 0;  // glfwGetTime() of the last frame
  GlfwKeys keys_;
  AppState state_;
  Fonts fonts_;
  std::unique_ptr<Textures> textures_;
  Screen screen_;
  std::deque<std::string> dropped_;  // paths that are not opened yet
};

Page& page() {
  static Page the_page;
  return the_page;
}

/// Why a run would take too long in a page; nothing when it would not.
std::optional<Error> refuse_long(const PlanIndex& plan) {
  const double flops = estimate_flops(plan.plan().scenario, plan.summary());
  if (flops <= kMostFlops) return std::nullopt;
  return make_error(
      ErrorKind::unavailable,
      fmt::format("This run is too long for a page: about {:.0f} Gflop, and a page carries out up "
                  "to {:.0f}",
                  flops * 1e-9, kMostFlops * 1e-9),
      "take fewer tokens or heads; or save the scenario, use `cpscope run FILE --record "
      "OUT.safetensors` and drop the record here");
}

/// Ends the worker with the last one that waits for it.
struct WorkerHold {
  explicit WorkerHold(int number) : number_(number) {}
  WorkerHold(const WorkerHold&) = delete;
  WorkerHold& operator=(const WorkerHold&) = delete;
  ~WorkerHold() { end_work(number_); }

 private:
  int number_;
};

/// The bytes that the worker left; empty when it ended without a result.
std::string take_work_result() {
  std::ifstream file(kWorkResult, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  file.close();
  std::error_code ignored;
  fs::remove(kWorkResult, ignored);
  return bytes;
}

/// Starts a worker and returns what waits for its result.
Task<Result<SharedRun>>::Poll run_in_worker(const RunOrder& order) {
  using Taken = std::unique_ptr<Result<SharedRun>>;
  std::optional<Error> refusal;
  if (!order.executor.empty()) refusal = refuse_long(*order.plan);
  if (!refusal) {
    const auto written = write_whole_file(
        kWorkPlan, [&](std::ostream& out) { write_plan_document(order.plan->plan(), out); },
        "the plan for the worker");
    if (!written) refusal = written.error();
  }
  if (refusal)
    return
        [refusal](TaskControl&) -> Taken { return std::make_unique<Result<SharedRun>>(*refusal); };
  const auto hold =
      std::make_shared<WorkerHold>(begin_work(order.executor.c_str(), order.record.c_str()));
  return [hold](TaskControl& control) -> Taken {
    control.reach(work_progress());
    if (is_work_done() == 0) return nullptr;
    const std::string bytes = take_work_result();
    return std::make_unique<Result<SharedRun>>(
        bytes.empty() ? make_error(ErrorKind::unavailable,
                                   "The browser ended the run: it may need more than the 4 GiB of "
                                   "memory of a page, or the browser starts no worker",
                                   "take fewer tokens or heads")
                      : read_run_bytes(bytes));
  };
}

bool Page::open(Toolbox& toolbox) {
  if (glfwInit() == GLFW_FALSE) return false;
  width_ = static_cast<int>(page_width() * page_scale());
  height_ = static_cast<int>(page_height() * page_scale());
  window_ = glfwCreateWindow(width_, height_, "cpscope", nullptr, nullptr);
  if (window_ == nullptr) return false;
  glfwMakeContextCurrent(window_);
  make_imgui_context();
  ImGui::GetIO().IniFilename = nullptr;
  ImGui::GetIO().LogFilename = nullptr;
  if (!ImGui_ImplGlfw_InitForOpenGL(window_, true)) return false;
  // Emscripten's GLFW hands on pixels, and down as up: take_wheel counts notches instead.
  glfwSetScrollCallback(window_, nullptr);
  glfwSetKeyCallback(window_, [](GLFWwindow* on, int key, int code, int action, int mods) {
    page().keys_.answer(on, key, code, action, mods);
  });
  if (!ImGui_ImplOpenGL3_Init("#version 300 es")) return false;
  textures_ = std::make_unique<Textures>(make_gl_device());
  plug_in(state_, toolbox);
  state_.services.is_page = true;
  state_.services.run_elsewhere = run_in_worker;
  std::error_code ignored;
  fs::create_directory(kDownloads, ignored);
  fs::current_path(kDownloads, ignored);
  open_lesson(state_, {0, 0});
  return true;
}

/// Gives the canvas one pixel per screen pixel, also after the page was zoomed or resized.
void Page::fit() {
  const float scale = static_cast<float>(page_scale()) * state_.magnification;
  const int width = std::max(1, static_cast<int>(page_width() * page_scale()));
  const int height = std::max(1, static_cast<int>(page_height() * page_scale()));
  if (width != width_ || height != height_) {
    glfwSetWindowSize(window_, width_ = width, height_ = height);
    wake();
  }
  if (scale == scale_) return;
  scale_ = scale;
  ImGui_ImplOpenGL3_DestroyFontsTexture();
  ImGui::GetIO().Fonts->Clear();
  fonts_ = load_fonts(*ImGui::GetIO().Fonts, FontChoice::packages, std::clamp(scale, 0.5F, 4.0F));
  ImGui_ImplOpenGL3_CreateFontsTexture();
  wake();
}

void Page::paint() {
  ImGui_ImplOpenGL3_NewFrame();
  ImGui_ImplGlfw_NewFrame();
  ImGuiIO& io = ImGui::GetIO();
  if (!(io.DeltaTime > 0)) io.DeltaTime = 1e-4F;  // the clock may be too coarse
  ImGui::NewFrame();
  screen_.build(state_, fonts_, *textures_, glfwGetTime());
  ImGui::Render();
  if (keys_.end_frame(window_)) wake();
  glViewport(0, 0, width_, height_);
  const Color back = theme_of(state_.theme).of(Role::background);
  glClearColor(back.r / 255.F, back.g / 255.F, back.b / 255.F, 1);
  glClear(GL_COLOR_BUFFER_BIT);
  ImGui_ImplOpenGL3_RenderDrawData(ImGui::GetDrawData());
  ++frames_;
}

/// Writes what a command has requested: the canvas and the state that makes it again, or the
/// focused view.
void Page::grant_wish() {
  const ExportWish wish = std::exchange(state_.wish, ExportWish::none);
  if (wish == ExportWish::none) return;
  wake();
  if (wish == ExportWish::link) {
    EM_ASM({ Module.copyLink(); });
    return tell(state_, "The link to what the page shows now is copied");
  }
  if (wish == ExportWish::screenshot) {
    hand_over_picture("cpscope.png");
    const auto saved = write_whole_file("cpscope.json", save_state(state_), "the state");
    if (!saved) tell(state_, to_text(saved.error()), true);
    return;
  }
  if (state_.plan() == nullptr) return;
  const std::string path = std::exchange(state_.wish_path, "");
  if (!path.ends_with(".svg"))
    return tell(state_, "A page writes a view as .svg or .csv; Ctrl+S keeps all of it as PNG",
                true);
  const auto written = write_view_svg(state_, path);
  tell(state_, written ? "Wrote " + path : to_text(written.error()), !written);
}

/// Turns every written file into a download.
void Page::hand_over() {
  std::error_code failed;
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(kDownloads, failed))
    if (entry.is_regular_file()) files.push_back(entry.path());
  for (const fs::path& path : files) {
    hand_over_file(path.c_str());
    fs::remove(path, failed);
  }
}

void Page::frame() {
  fit();
  if (is_at_rest()) return;
  // The worker needs the processor more than a bar of progress does.
  const bool is_waiting = state_.job.task.is_running() && awake_ == 0 && dropped_.empty() &&
                          !state_.player.is_playing && !state_.document.is_planning();
  if (is_waiting && glfwGetTime() < painted_s_ + kWaitingFrame) return;
  painted_s_ = glfwGetTime();
  // Carries out the work that the last frame began, after that frame has shown its start.
  carry_out_posted();
  awake_ = std::max(0, awake_ - 1);
  glfwPollEvents();
  open_dropped(state_, dropped_);
  paint();
  grant_wish();
  hand_over();
}

EM_BOOL wake_on_mouse(int, const EmscriptenMouseEvent*, void*) {
  page().wake();
  return EM_FALSE;
}
EM_BOOL take_wheel(int, const EmscriptenWheelEvent* event, void*) {
  constexpr double kMostNotches = 3;
  const double notch = event->deltaMode == DOM_DELTA_PIXEL  ? 100
                       : event->deltaMode == DOM_DELTA_LINE ? 3
                                                            : 1;
  const auto notches = [&](double delta) {
    return static_cast<float>(std::clamp(-delta / notch, -kMostNotches, kMostNotches));
  };
  compat::feed_wheel(ImGui::GetIO(), notches(event->deltaX), notches(event->deltaY));
  page().wake();
  return EM_FALSE;
}
EM_BOOL wake_on_key(int, const EmscriptenKeyboardEvent*, void*) {
  page().wake();
  return EM_FALSE;
}

void listen_to_events() {
  const char* target = EMSCRIPTEN_EVENT_TARGET_WINDOW;
  emscripten_set_mousemove_callback(target, nullptr, EM_TRUE, wake_on_mouse);
  emscripten_set_mousedown_callback(target, nullptr, EM_TRUE, wake_on_mouse);
  emscripten_set_mouseup_callback(target, nullptr, EM_TRUE, wake_on_mouse);
  emscripten_set_keydown_callback(target, nullptr, EM_TRUE, wake_on_key);
  emscripten_set_keyup_callback(target, nullptr, EM_TRUE, wake_on_key);
  emscripten_set_wheel_callback(target, nullptr, EM_TRUE, take_wheel);
}

const char* keep(std::string text) {
  static std::string kept;
  kept = std::move(text);
  return kept.c_str();
}

}  // namespace
}  // namespace cpscope::gui

// For the page around the canvas, and for programs that drive it from outside, such as its test.
extern "C" {

/// Opens a file in the page's own memory: a scenario, a record or a state. An error becomes a
/// message in the window.
EMSCRIPTEN_KEEPALIVE void cpscope_open(const char* path) {
  cpscope::gui::page().wake();
  cpscope::gui::page().open_file(path);
}
/// Opens a shipped scenario ("zigzag"), a lesson ("lesson-2", counted from 1) or a page of one
/// ("lesson-2.3"). Returns 1 if it exists.
EMSCRIPTEN_KEEPALIVE int cpscope_show(const char* name) {
  cpscope::gui::AppState& state = cpscope::gui::page().state();
  cpscope::gui::page().wake();
  const std::string text = name;
  const std::string lesson = "lesson-";
  if (!text.starts_with(lesson)) {
    cpscope::gui::close_lesson(state);
    return cpscope::gui::open_shipped(state, text) ? 1 : 0;
  }
  int number = 0, page = 1;
  std::sscanf(text.c_str() + lesson.size(), "%6d.%6d", &number, &page);
  return number > 0 && page > 0 && cpscope::gui::open_lesson(state, {number - 1, page - 1}) ? 1 : 0;
}
/// Shows a state again, as cpscope_state() gave it. Returns 1 if it is one.
EMSCRIPTEN_KEEPALIVE int cpscope_load(const char* json) {
  cpscope::gui::AppState& state = cpscope::gui::page().state();
  cpscope::gui::page().wake();
  const auto error = cpscope::gui::load_state(state, json, "the link");
  if (error) cpscope::gui::tell(state, to_text(*error), true);
  return error ? 0 : 1;
}
/// Shows one view and its steps alone, in a theme or (empty) the one it has. Returns 1 if there are
/// a view and a theme of these names.
EMSCRIPTEN_KEEPALIVE int cpscope_embed(const char* view, const char* theme) {
  cpscope::gui::AppState& state = cpscope::gui::page().state();
  cpscope::gui::page().wake();
  const std::string name = theme;
  const auto wanted = cpscope::gui::parse_theme(name);
  if (!name.empty() && !wanted) return 0;
  for (const cpscope::gui::ViewKind kind : cpscope::gui::kViewKinds) {
    if (cpscope::gui::to_name(kind) != view) continue;
    if (wanted) state.theme = *wanted;
    if (!state.only_view) cpscope::gui::close_lesson(state);
    state.only_view = state.focus_view = kind;
    return 1;
  }
  return 0;
}
/// What a finger does at a place of the canvas, in its pixels: 0 it is a mouse, 1 it scrolls text,
/// 2 a quick stroke to the side shows the next view.
EMSCRIPTEN_KEEPALIVE int cpscope_touch_at(double x, double y) {
  const cpscope::gui::AppState& state = cpscope::gui::page().state();
  const auto is_in = [&](const std::string& name) {
    const cpscope::gui::Box* box = cpscope::gui::page().hits().find(name);
    return box != nullptr && box->contains({static_cast<float>(x), static_cast<float>(y)});
  };
  if (state.dialog != cpscope::gui::Dialog::none) return 1;
  for (const char* panel : {"editor", "inspector", "lesson", "caption"})
    if (is_in(panel)) return 1;
  const bool has_tabs = cpscope::gui::page().hits().find("tabs") != nullptr;
  const auto shown = state.focus_view.value_or(cpscope::gui::ViewKind::layout);
  const bool is_view = is_in(std::string(cpscope::gui::to_name(shown)) + "/canvas");
  return has_tabs && is_view && cpscope::gui::can_swipe(state) ? 2 : 0;
}
/// 1 while the mouse is over something that a view shows.
EMSCRIPTEN_KEEPALIVE int cpscope_is_hovering() {
  return std::holds_alternative<cpscope::gui::Nothing>(cpscope::gui::page().state().hovered) ? 0
                                                                                             : 1;
}
/// Shows the next view (1) or the one before (-1).
EMSCRIPTEN_KEEPALIVE void cpscope_swipe(int direction) {
  cpscope::gui::page().wake();
  cpscope::gui::swipe(cpscope::gui::page().state(), direction);
}
/// "x0 y0 x1 y1" of a widget of the last frame, in pixels of the canvas; "" when it is not shown.
EMSCRIPTEN_KEEPALIVE const char* cpscope_place_of(const char* name) {
  const cpscope::gui::Box* box = cpscope::gui::page().hits().find(name);
  if (box == nullptr) return "";
  return cpscope::gui::keep(fmt::format("{} {} {} {}", box->x0, box->y0, box->x1, box->y1));
}
/// The content of a screenshot's JSON file.
EMSCRIPTEN_KEEPALIVE const char* cpscope_state() {
  return cpscope::gui::keep(cpscope::gui::save_state(cpscope::gui::page().state()));
}
/// Text that is on the screen now: the page of the lesson with what is said about the answer, or
/// the caption; then messages, one per line.
EMSCRIPTEN_KEEPALIVE const char* cpscope_words() {
  cpscope::gui::AppState& state = cpscope::gui::page().state();
  std::string words;
  words += cpscope::gui::to_text(cpscope::gui::lesson_text(state));
  const std::string feedback = cpscope::gui::to_text(cpscope::gui::answer_feedback(state));
  if (!feedback.empty()) words += "\n" + feedback;
  // During a lesson its text matters more, and the caption would tell the answer to a question.
  if (state.plan() != nullptr && words.empty())
    words = cpscope::gui::to_text(cpscope::gui::make_caption(
        *state.plan(), cpscope::gui::moment_of(*state.plan(), state.playhead), state.focus_rank));
  for (const auto& message : state.messages) words += "\n" + message.text;
  if (state.run_a) words += "\n" + state.run_a->verdict;
  return cpscope::gui::keep(std::move(words));
}
/// True if everything that was requested is finished.
EMSCRIPTEN_KEEPALIVE int cpscope_is_at_rest() { return cpscope::gui::page().is_at_rest() ? 1 : 0; }
/// Number of frames painted since the page was opened.
EMSCRIPTEN_KEEPALIVE double cpscope_frames() {
  return static_cast<double>(cpscope::gui::page().frames());
}
}

namespace cpscope::gui {

void work_for_page(Toolbox& toolbox, const std::string& executor, const std::string& given) {
  const Result<LoadedScenario> loaded = load_scenario_or_plan(kWorkPlan);
  Result<SharedRun> run = loaded ? Result<SharedRun>(SharedRun()) : loaded.error();
  if (loaded) {
    const auto plan = std::make_shared<const PlanIndex>(*loaded.value().plan);
    TaskControl control;
    // Whole percents are enough, and messages are not free.
    control.reported = [last = -1](double share) mutable {
      const int percent = static_cast<int>(100 * share);
      if (percent != std::exchange(last, percent)) report_progress(share);
    };
    run = executor.empty() ? make_record_reader(toolbox)(given, plan, control)
                           : make_runner(toolbox)(executor, plan, control);
  }
  const std::string bytes = write_run_bytes(run);
  std::ofstream(kWorkResult, std::ios::binary).write(bytes.data(), std::ssize(bytes));
}

int open_page(Toolbox& toolbox) {
  if (!page().open(toolbox)) {
    EM_ASM({
      Module.tell(
          'This browser offers no WebGL 2, which the picture needs. Open the page in a current ' +
          'Firefox, Chromium or Safari.');
    });
    return 1;
  }
  listen_to_events();
  EM_ASM({ Module.start(); });
  emscripten_set_main_loop([] { page().frame(); }, 0, EM_FALSE);
  return 0;
}

}  // namespace cpscope::gui
