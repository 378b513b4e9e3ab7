#include "gui/window/glfw_keys.h"

#include <utility>

#include <GLFW/glfw3.h>
#include <backends/imgui_impl_glfw.h>

namespace cpscope::gui {

void GlfwKeys::answer(GLFWwindow* window, int key, int code, int action, int mods) {
  if (action == GLFW_RELEASE && has_press_) {
    releases_.push_back({key, code, action, mods});
    return;
  }
  has_press_ = has_press_ || action == GLFW_PRESS;
  ImGui_ImplGlfw_KeyCallback(window, key, code, action, mods);
}

bool GlfwKeys::end_frame(GLFWwindow* window) {
  has_press_ = false;
  const std::vector<Event> releases = std::exchange(releases_, {});
  for (const Event& event : releases)
    answer(window, event.key, event.code, event.action, event.mods);
  return !releases.empty();
}

}  // namespace cpscope::gui
