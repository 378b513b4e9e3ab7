#include "gui/window/glfw_window.h"

#include "gui/panel/imgui_compat.h"
#include "gui/panel/screen.h"
#include "gui/window/gl_textures.h"
#include "gui/window/glfw_keys.h"
#include "gui/window/screenshot.h"
#include "gui/window/services.h"
#include "gui/window/watch_folder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include <GLFW/glfw3.h>
#include <backends/imgui_impl_glfw.h>
#include <backends/imgui_impl_opengl3.h>
#include <imgui.h>

namespace cpscope::gui {
namespace {

constexpr double kMovingFrame = 1.0 / 60;  // seconds per frame while something moves
constexpr double kAtRest = 0.5;            // seconds to wait for an event before checking again
constexpr int32_t kFramesOfEvent = 3;  // number of frames until widgets have reacted to an event

/// The last error of GLFW, which reports errors only to a plain function.
std::string& last_complaint() {
  static std::string complaint;
  return complaint;
}

Error no_window(const std::string& what) {
  const std::string& why = last_complaint();
  return make_error(ErrorKind::unavailable, what + (why.empty() ? std::string() : " (" + why + ")"),
                    "`cpscope render` and `cpscope gui --screenshot` draw without a display");
}

struct GlfwSession {
  bool is_here = false;

  GlfwSession() {
    glfwSetErrorCallback([](int, const char* text) {
      last_complaint() = text;
      while (last_complaint().ends_with(' ')) last_complaint().pop_back();
    });
    is_here = glfwInit() == GLFW_TRUE;
  }
  ~GlfwSession() {
    if (is_here) glfwTerminate();
  }
  GlfwSession(const GlfwSession&) = delete;
  GlfwSession& operator=(const GlfwSession&) = delete;
};

using Handle = std::unique_ptr<GLFWwindow, decltype(&glfwDestroyWindow)>;

/// A window of OpenGL 3.2 or, with an old driver, 3.0. Null when neither is available.
Handle create_window(Size size, const char*& shader_version) {
  const struct {
    int major, minor, profile;
    const char* shaders;
  } versions[] = {{3, 2, GLFW_OPENGL_CORE_PROFILE, "#version 150"},
                  {3, 0, GLFW_OPENGL_ANY_PROFILE, "#version 130"}};
  for (const auto& version : versions) {
    glfwDefaultWindowHints();
    glfwWindowHint(GLFW_CONTEXT_VERSION_MAJOR, version.major);
    glfwWindowHint(GLFW_CONTEXT_VERSION_MINOR, version.minor);
    glfwWindowHint(GLFW_OPENGL_PROFILE, version.profile);
    glfwWindowHint(GLFW_OPENGL_FORWARD_COMPAT,
                   version.profile == GLFW_OPENGL_CORE_PROFILE ? GLFW_TRUE : GLFW_FALSE);
    glfwWindowHint(GLFW_SCALE_TO_MONITOR, GLFW_TRUE);
    GLFWwindow* window = glfwCreateWindow(
        static_cast<int>(size.width), static_cast<int>(size.height), "cpscope", nullptr, nullptr);
    shader_version = version.shaders;
    if (window != nullptr) return {window, glfwDestroyWindow};
  }
  return {nullptr, glfwDestroyWindow};
}

/// The requested size, reduced to the size of the screen.
Size fit_screen(Size size) {
  int x = 0, y = 0, width = 0, height = 0;
  float scale = 1, ignored = 1;
  GLFWmonitor* monitor = glfwGetPrimaryMonitor();
  if (monitor == nullptr) return size;
  glfwGetMonitorWorkarea(monitor, &x, &y, &width, &height);
  glfwGetMonitorContentScale(monitor, &scale, &ignored);
  if (width <= 0 || height <= 0 || !(scale > 0)) return size;
  return {std::min(size.width, static_cast<float>(width) / scale),
          std::min(size.height, static_cast<float>(height) / scale)};
}

/// Dear ImGui in an OpenGL window, with fonts for its screen.
class Window {
 public:
  Window(AppState& state, Handle handle, const GlfwOptions& options)
      : state_(state),
        handle_(std::move(handle)),
        options_(options),
        watch_(options.watch_folder) {}
  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  std::optional<Error> start(const char* shader_version);
  std::optional<Error> run();

 private:
  void load();
  void wait(double spent);
  void paint();
  std::optional<Error> show_watchers();
  void name_window();
  void follow_full_screen();
  Size logical_size() const;
  bool is_watched() const { return !options_.watch_folder.empty(); }

  AppState& state_;
  Handle handle_;
  const GlfwOptions& options_;
  WatchFolder watch_;
  ImGuiContext* context_ = nullptr;
  bool has_glfw_backend_ = false, has_gl_backend_ = false;
  Fonts fonts_;
  Screen screen_{true};
  std::unique_ptr<Textures> textures_;
  std::deque<std::string> dropped_;  // paths that are not opened yet
  GlfwKeys keys_;
  std::string name_;
  bool has_new_scale_ = false;
  float magnification_ = 1;  // of the fonts that are loaded
  bool is_full_screen_ = false;
  int x_ = 0, y_ = 0, width_ = 0, height_ = 0;  // of the window before it became full screen
  bool is_shown_to_watchers_ = false;
  int32_t frames_due_ = kFramesOfEvent;
};

Window::~Window() {
  textures_.reset();
  if (has_gl_backend_) ImGui_ImplOpenGL3_Shutdown();
  if (has_glfw_backend_) ImGui_ImplGlfw_Shutdown();
  if (context_ != nullptr) ImGui::DestroyContext(context_);
}

std::optional<Error> Window::start(const char* shader_version) {
  GLFWwindow* window = handle_.get();
  glfwMakeContextCurrent(window);
  glfwSwapInterval(1);
  glfwSetWindowUserPointer(window, this);
  glfwSetDropCallback(window, [](GLFWwindow* on, int count, const char** paths) {
    auto* self = static_cast<Window*>(glfwGetWindowUserPointer(on));
    self->dropped_.insert(self->dropped_.end(), paths, paths + count);
  });
  glfwSetWindowContentScaleCallback(window, [](GLFWwindow* on, float, float) {
    static_cast<Window*>(glfwGetWindowUserPointer(on))->has_new_scale_ = true;
  });
  glfwSetWindowRefreshCallback(window, [](GLFWwindow* on) {
    static_cast<Window*>(glfwGetWindowUserPointer(on))->frames_due_ = kFramesOfEvent;
  });
  context_ = make_imgui_context();
  ImGui::SetCurrentContext(context_);
  ImGuiIO& io = ImGui::GetIO();
  io.IniFilename = nullptr;
  io.LogFilename = nullptr;
  if (is_watched()) io.ConfigInputTextCursorBlink = false;
  has_glfw_backend_ = ImGui_ImplGlfw_InitForOpenGL(window, true);
  glfwSetKeyCallback(window, [](GLFWwindow* on, int key, int code, int action, int mods) {
    static_cast<Window*>(glfwGetWindowUserPointer(on))->keys_.answer(on, key, code, action, mods);
  });
  has_gl_backend_ = has_glfw_backend_ && ImGui_ImplOpenGL3_Init(shader_version);
  if (!has_gl_backend_) return no_window("OpenGL 3 could not be set up");
  textures_ = std::make_unique<Textures>(is_watched() ? watch_.keep_copies(make_gl_device())
                                                      : make_gl_device());
  load();
  if (!fonts_.missing.empty()) tell(state_, fonts_.missing);
  return std::nullopt;
}

/// Loads fonts for the screen that shows the window.
void Window::load() {
  has_new_scale_ = false;
  float scale = options_.scale, ignored = 1;
  if (scale <= 0) glfwGetWindowContentScale(handle_.get(), &scale, &ignored);
  // If the window is measured in logical pixels, the system scales it.
  int width = 0, height = 0, pixels = 0;
  glfwGetWindowSize(handle_.get(), &width, &height);
  glfwGetFramebufferSize(handle_.get(), &pixels, &height);
  if (width > 0 && pixels > 0) scale *= static_cast<float>(width) / static_cast<float>(pixels);
  magnification_ = state_.magnification;
  scale *= magnification_;
  ImGui_ImplOpenGL3_DestroyFontsTexture();
  ImFontAtlas& atlas = *ImGui::GetIO().Fonts;
  atlas.Clear();
  fonts_ = load_fonts(atlas, FontChoice::packages, std::clamp(scale, 0.5F, 4.0F));
  ImGui_ImplOpenGL3_CreateFontsTexture();
  frames_due_ = kFramesOfEvent;
}

/// Sleeps until an event arrives or, while something moves, until the next frame is due.
void Window::wait(double spent) {
  const bool is_moving = frames_due_ > 0 || screen_.is_busy(state_);
  const bool blinks = ImGui::GetIO().WantTextInput;
  if (is_moving) {
    if (spent < kMovingFrame) {
      glfwWaitEventsTimeout(kMovingFrame - spent);
    } else {
      glfwPollEvents();
    }
    return;
  }
  const double start = glfwGetTime();
  glfwWaitEventsTimeout(kAtRest);
  const bool has_event = glfwGetTime() - start < kAtRest * 0.98;
  if (has_event) frames_due_ = kFramesOfEvent;
  if (!has_event && blinks) frames_due_ = 1;
}

void Window::name_window() {
  std::string name = "cpscope";
  if (state_.document.is_open()) {
    const std::string& title = state_.document.scenario().title;
    name = (title.empty() ? state_.document.path() : title) + " - cpscope";
  }
  if (name == name_) return;
  name_ = name;
  glfwSetWindowTitle(handle_.get(), name.c_str());
}

/// The monitor with the middle of a window.
GLFWmonitor* find_monitor(GLFWwindow* window) {
  int x = 0, y = 0, width = 0, height = 0, count = 0;
  glfwGetWindowPos(window, &x, &y);
  glfwGetWindowSize(window, &width, &height);
  GLFWmonitor** monitors = glfwGetMonitors(&count);
  for (int n = 0; n < count; ++n) {
    int left = 0, top = 0;
    glfwGetMonitorPos(monitors[n], &left, &top);
    const GLFWvidmode* mode = glfwGetVideoMode(monitors[n]);
    const int middle_x = x + width / 2 - left, middle_y = y + height / 2 - top;
    if (mode != nullptr && middle_x >= 0 && middle_x < mode->width && middle_y >= 0 &&
        middle_y < mode->height)
      return monitors[n];
  }
  return glfwGetPrimaryMonitor();
}

void Window::follow_full_screen() {
  if (state_.is_full_screen == is_full_screen_) return;
  GLFWwindow* window = handle_.get();
  GLFWmonitor* monitor = state_.is_full_screen ? find_monitor(window) : nullptr;
  const GLFWvidmode* mode = monitor == nullptr ? nullptr : glfwGetVideoMode(monitor);
  if (state_.is_full_screen && mode == nullptr) state_.is_full_screen = false;
  if (state_.is_full_screen == is_full_screen_) return;
  is_full_screen_ = state_.is_full_screen;
  if (is_full_screen_) {
    glfwGetWindowPos(window, &x_, &y_);
    glfwGetWindowSize(window, &width_, &height_);
    glfwSetWindowMonitor(window, monitor, 0, 0, mode->width, mode->height, mode->refreshRate);
  } else {
    glfwSetWindowMonitor(window, nullptr, x_, y_, width_, height_, GLFW_DONT_CARE);
  }
  frames_due_ = kFramesOfEvent;
}

/// The size of the window, or of the one that it is when it is not full screen.
Size Window::logical_size() const {
  int width = width_, height = height_, pixels = 0, ignored = 0;
  if (!is_full_screen_) glfwGetWindowSize(handle_.get(), &width, &height);
  int now = 0;
  glfwGetWindowSize(handle_.get(), &now, &ignored);
  glfwGetFramebufferSize(handle_.get(), &pixels, &ignored);
  float scale = 1, unused = 1;
  // A window that is measured in pixels has as many as the monitor's scale asks for.
  if (pixels == now) glfwGetWindowContentScale(handle_.get(), &scale, &unused);
  return {static_cast<float>(width) / scale, static_cast<float>(height) / scale};
}

void Window::paint() {
  ImGui_ImplOpenGL3_NewFrame();
  ImGui_ImplGlfw_NewFrame();
  ImGuiIO& io = ImGui::GetIO();
  if (!(io.DeltaTime > 0)) io.DeltaTime = 1e-4F;  // the clock may be too coarse
  ImGui::NewFrame();
  screen_.build(state_, fonts_, *textures_, glfwGetTime());
  ImGui::Render();
  if (keys_.end_frame(handle_.get())) frames_due_ = kFramesOfEvent;
  int width = 0, height = 0;
  glfwGetFramebufferSize(handle_.get(), &width, &height);
  glViewport(0, 0, width, height);
  const Color back = theme_of(state_.theme).of(Role::background);
  glClearColor(back.r / 255.F, back.g / 255.F, back.b / 255.F, 1);
  glClear(GL_COLOR_BUFFER_BIT);
  ImGui_ImplOpenGL3_RenderDrawData(ImGui::GetDrawData());
}

Image read_pixels(int width, int height) {
  Image flipped(width, height), image(width, height);
  glPixelStorei(GL_PACK_ALIGNMENT, 1);
  glReadPixels(0, 0, width, height, GL_RGBA, GL_UNSIGNED_BYTE, flipped.pixels.data());
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      Color color = flipped.at(x, height - 1 - y);
      color.a = 255;
      image.at(x, y) = color;
    }
  }
  return image;
}

std::optional<Error> Window::show_watchers() {
  int width = 0, height = 0;
  glfwGetFramebufferSize(handle_.get(), &width, &height);
  ImFontAtlas& atlas = *ImGui::GetIO().Fonts;
  unsigned char* bytes = nullptr;
  int atlas_width = 0, atlas_height = 0;
  atlas.GetTexDataAsRGBA32(&bytes, &atlas_width, &atlas_height);
  Image letters(atlas_width, atlas_height);
  std::memcpy(letters.pixels.data(), bytes, letters.pixels.size() * sizeof(Color));
  is_shown_to_watchers_ = true;
  return watch_.write(state_, screen_.hits(), *ImGui::GetDrawData(), read_pixels(width, height),
                      compat::to_number(atlas.TexID), letters);
}

std::optional<Error> Window::run() {
  for (int64_t frame = 0; options_.frames == 0 || frame < options_.frames; ++frame) {
    const double start = glfwGetTime();
    if (has_new_scale_ || magnification_ != state_.magnification) load();
    open_dropped(state_, dropped_);
    name_window();
    paint();
    if (frames_due_ > 0) {
      --frames_due_;
      is_shown_to_watchers_ = false;
    }
    const bool is_at_rest = frames_due_ == 0 && !screen_.is_busy(state_);
    if (is_watched() && is_at_rest && !is_shown_to_watchers_) {
      if (auto error = show_watchers()) return error;
    }
    glfwSwapBuffers(handle_.get());
    if (state_.wish != ExportWish::none) {
      const ImVec2 pixels = ImGui::GetIO().DisplaySize;
      grant_wish(state_, {.size = {pixels.x / fonts_.scale, pixels.y / fonts_.scale},
                          .scale = fonts_.scale});
      frames_due_ = kFramesOfEvent;
    }
    if (glfwWindowShouldClose(handle_.get())) {
      glfwSetWindowShouldClose(handle_.get(), GLFW_FALSE);
      ask_to_quit(state_);
      frames_due_ = kFramesOfEvent;
    }
    follow_full_screen();
    if (state_.wants_quit) {
      if (options_.at_end) options_.at_end(logical_size());
      break;
    }
    wait(glfwGetTime() - start);
  }
  return std::nullopt;
}

}  // namespace

std::optional<Error> show_window(AppState& state, const GlfwOptions& options) {
  const GlfwSession session;
  if (!session.is_here) return no_window("the window needs a display");
  const char* shader_version = nullptr;
  Handle handle = create_window(fit_screen(options.size), shader_version);
  if (!handle) return no_window("the window needs OpenGL 3");
  state.services.has_full_screen = glfwGetPrimaryMonitor() != nullptr;
  Window window(state, std::move(handle), options);
  if (auto error = window.start(shader_version)) return error;
  return window.run();
}

}  // namespace cpscope::gui
