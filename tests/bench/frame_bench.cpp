// Whole frames of the window without a display: all that the CPU does before a graphics card draws,
// from the state to the triangles of every panel.
//   build/tests/cpscope_bench --benchmark_filter=Frame
//   build/tests/cpscope_bench --benchmark_filter=Open

#include "gui/app/app_state.h"
#include "gui/app/document/make_view.h"
#include "gui/panel/offscreen.h"
#include "gui/panel/screen.h"
#include "sim/scenario/scenario_file.h"
#include "tests/bench/bench_cases.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <benchmark/benchmark.h>

namespace cpscope::bench {
namespace {

using gui::AxisSpan;
using gui::Camera;
using gui::ViewKind;

constexpr gui::Size kDisplay{1920, 1080};
constexpr int32_t kFrames = 60;

/// Milliseconds of work of this thread, or of all, whatever else the machine does.
double spent_ms(clockid_t clock = CLOCK_THREAD_CPUTIME_ID) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

/// A window in memory with one scenario open.
class Display {
 public:
  explicit Display(const PlanSize& size) {
    state_.document.load_text(print_scenario(planning_scenario(size)), "");
  }

  void frame() {
    now_s_ += 1.0 / 60;
    offscreen_.frame(
        [this] { screen_.build(state_, offscreen_.fonts(), offscreen_.textures(), now_s_); });
  }
  double measure_frame() {
    const double before = spent_ms();
    frame();
    return spent_ms() - before;
  }
  /// Frames until nothing more comes.
  void wait() {
    frame();
    while (screen_.is_waiting()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      frame();
    }
  }
  /// Waits for the plan, and until the panels stand still.
  void settle() {
    gui::settle(state_);
    for (int32_t i = 0; i < 6; ++i) frame();
    wait();
  }
  bool is_waiting() const { return screen_.is_waiting(); }
  gui::AppState& state() { return state_; }
  gui::Offscreen& offscreen() { return offscreen_; }
  const gui::Box* find(const std::string& name) const { return screen_.hits().find(name); }

 private:
  gui::AppState state_;
  gui::Offscreen offscreen_{gui::OffscreenOptions{.size = kDisplay}};
  gui::Screen screen_{true};
  double now_s_ = 0;
};

/// What changes from frame to frame.
using Motion = std::function<void(Display& display, int32_t frame)>;

/// The plan of a size stays open from case to case: a million tokens are planned once.
Display& display_of(const std::string& name, const PlanSize& size) {
  static std::pair<std::string, std::unique_ptr<Display>> open;
  if (open.first != name) {
    open.second.reset();
    open = {name, std::make_unique<Display>(size)};
  }
  return *open.second;
}

void rest(Display& display) {
  gui::AppState& state = display.state();
  state.cameras = {};
  state.playhead = {};
  state.selection = {};
  state.focus_rank = 0;
  display.offscreen().move_mouse({-1000, -1000});
  display.settle();
}

void BM_Frame(benchmark::State& bench, const std::string& name, const PlanSize& size,
              const Motion& motion) {
  Display& display = display_of(name, size);
  rest(display);
  if (display.state().plan() == nullptr) return bench.SkipWithError("refused");
  // What is made once for a plan is made before.
  motion(display, 0);
  display.frame();
  std::vector<double> times;
  for (auto _ : bench) {
    motion(display, static_cast<int32_t>(times.size()) + 1);
    times.push_back(display.measure_frame());
    bench.SetIterationTime(times.back() * 1e-3);
  }
  // What other threads work until everything of one more change is shown.
  display.wait();
  motion(display, kFrames + 2);
  const double before_all = spent_ms(CLOCK_PROCESS_CPUTIME_ID), before = spent_ms();
  display.wait();
  bench.counters["background_ms"] =
      spent_ms(CLOCK_PROCESS_CPUTIME_ID) - before_all - (spent_ms() - before);
  std::sort(times.begin(), times.end());
  bench.counters["median_ms"] = times[times.size() / 2];
  bench.counters["worst_ms"] = times.back();
}

/// From the text of a scenario to frames of the window, milliseconds of the wall clock: layout_ms
/// until it shows who owns which token, all_ms until every view is whole; and cpu_ms, the work of
/// all threads, which a busy machine does not stretch.
void BM_Open(benchmark::State& bench, const PlanSize& size) {
  for (auto _ : bench) {
    const auto start = std::chrono::steady_clock::now();
    const double start_cpu_ms = spent_ms(CLOCK_PROCESS_CPUTIME_ID);
    const auto passed = [&] {
      return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
          .count();
    };
    Display display(size);
    const gui::Document& document = display.state().document;
    double layout_ms = 0, worst_ms = 0;
    display.frame();
    while (document.is_planning() || display.is_waiting()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(16));
      worst_ms = std::max(worst_ms, display.measure_frame());
      const bool shows = document.first_layout() != nullptr || document.plan() != nullptr;
      if (shows && layout_ms == 0) layout_ms = passed();
    }
    display.frame();
    bench.counters["layout_ms"] = layout_ms > 0 ? layout_ms : passed();
    bench.counters["all_ms"] = passed();
    bench.counters["cpu_ms"] = spent_ms(CLOCK_PROCESS_CPUTIME_ID) - start_cpu_ms;
    bench.counters["worst_frame_ms"] = worst_ms;
  }
}

/// A view of a plan that has just been made: what it finds out once a plan, and its marks.
void BM_FirstView(benchmark::State& bench, const std::string& name, const PlanSize& size,
                  ViewKind kind) {
  Display& display = display_of(name, size);
  rest(display);
  if (display.state().plan() == nullptr) return bench.SkipWithError("refused");
  const gui::Projection nothing;
  for (auto _ : bench) {
    gui::ViewMemo memo;
    gui::ViewInput input = view_input(display.state(), kind);
    input.size = {800, 560};
    input.text_width = gui::text_width_of(display.offscreen().fonts());
    input.selected = input.hovered = &nothing;
    input.memo = &memo;
    benchmark::DoNotOptimize(make_view(kind, input).drawing.marks.size());
  }
}

/// A share `width` of both axes, moved to and fro around a place that is no round share.
Motion move_camera(ViewKind kind, double width) {
  return [kind, width](Display& display, int32_t frame) {
    const double tokens = static_cast<double>(display.state().plan()->tokens(Side::q));
    const double wide = std::min(1.0, width > 0 ? width : 64 / tokens);
    // All of it cannot be moved: it is zoomed a little.
    const double shown = wide < 1 ? wide : 1 - 0.01 * (frame % 10);
    const double lo = (1 - shown) * (0.37 + 0.002 * shown * (frame % 40));
    Camera& camera = display.state().camera(kind);
    camera.x = camera.y = AxisSpan{lo, lo + shown};
  };
}

/// The playhead through all steps, both passes.
void move_playhead(Display& display, int32_t frame) {
  gui::AppState& state = display.state();
  const auto steps = static_cast<int64_t>(state.plan()->steps().size());
  state.playhead.index =
      static_cast<int32_t>(int64_t{frame} * std::max<int64_t>(1, steps / 61) % steps);
}

/// The mouse across a view.
Motion move_mouse(ViewKind kind) {
  return [kind](Display& display, int32_t frame) {
    const gui::Box* box = display.find(std::string(to_name(kind)) + "/canvas");
    if (box == nullptr) return;
    const float share = static_cast<float>(frame) / (kFrames + 2);
    display.offscreen().move_mouse(
        {box->x0 + share * box->width(), box->y0 + share * box->height()});
  };
}

/// Another rank is selected in every frame.
void move_selection(Display& display, int32_t frame) {
  select(display.state(), gui::RankTarget{frame * 7 % display.state().plan()->num_ranks()});
}

/// A step runs, a second long: packets and tiles are at another place in every frame.
void run_step(Display& display, int32_t frame) {
  display.state().playhead = {false, 1, (frame % 60) / 60.0};
}

void add_frame(const std::string& name, const std::string& motion_name, const PlanSize& size,
               Motion motion) {
  benchmark::RegisterBenchmark(("BM_Frame/" + name + "/" + motion_name).c_str(),
                               [name, size, motion = std::move(motion)](benchmark::State& bench) {
                                 BM_Frame(bench, name, size, motion);
                               })
      ->Unit(benchmark::kMillisecond)
      ->UseManualTime()
      ->Iterations(kFrames);
}

void add_frames(const std::string& name, const PlanSize& size) {
  add_frame(name, "still", size, [](Display&, int32_t) {});
  add_frame(name, "playhead", size, move_playhead);
  add_frame(name, "playing", size, run_step);
  add_frame(name, "selection", size, move_selection);
  for (const ViewKind kind : gui::kViewKinds) {
    const std::string view(to_name(kind));
    add_frame(name, view + "/mouse", size, move_mouse(kind));
    add_frame(name, view + "/camera/whole", size, move_camera(kind, 1));
    add_frame(name, view + "/camera/middle", size, move_camera(kind, 1.0 / 16));
    add_frame(name, view + "/camera/tokens", size, move_camera(kind, 0));
  }
}

bool register_frames() {
  struct Case {
    const char* name;
    PlanSize size;
  };
  const Case cases[] = {
      {"4K_x8", {4096, 4, 8}},
      {"128K_x64", {131'072, 1, 64}},
      {"128K_x64_200_documents", {131'072, 200, 64}},
      {"1M_x1024", {1'048'576, 1, 1024}},
      {"1M_x1024_striped", {1'048'576, 1, 1024, LayoutKind::striped}},
      {"1M_x1024_all_gather", {1'048'576, 1, 1024, LayoutKind::dual_chunk, CommType::all_gather}},
      {"1M_x1024_group_cast", {1'048'576, 1, 1024, LayoutKind::lpt, CommType::group_cast}},
  };
  for (const Case& c : cases) {
    benchmark::RegisterBenchmark((std::string("BM_Open/") + c.name).c_str(), BM_Open, c.size)
        ->Unit(benchmark::kMillisecond)
        ->UseRealTime()
        ->Iterations(1);
  }
  for (const Case& c : cases) {
    for (const ViewKind kind : gui::kViewKinds) {
      benchmark::RegisterBenchmark(
          ("BM_FirstView/" + std::string(c.name) + "/" + std::string(to_name(kind))).c_str(),
          BM_FirstView, std::string(c.name), c.size, kind)
          ->Unit(benchmark::kMillisecond)
          ->Iterations(2);
    }
  }
  for (const Case& c : cases) add_frames(c.name, c.size);
  return true;
}

const bool kFramesAreRegistered = register_frames();

}  // namespace
}  // namespace cpscope::bench
