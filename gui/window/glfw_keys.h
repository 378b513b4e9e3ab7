#pragma once

#include <vector>

struct GLFWwindow;

namespace cpscope::gui {

/// Passes keys from GLFW to Dear ImGui. Up to 1.86, Dear ImGui only reads the key states when a
/// frame begins: a key that is pressed and released between two frames would be lost. So the
/// release is delayed by one frame.
class GlfwKeys {
 public:
  void answer(GLFWwindow* window, int key, int code, int action, int mods);
  /// Call after every frame. Returns true when keys were released, so that another frame must
  /// follow.
  bool end_frame(GLFWwindow* window);

 private:
  struct Event {
    int key = 0, code = 0, action = 0, mods = 0;
  };
  std::vector<Event> releases_;  // passed on after the next frame
  bool has_press_ = false;       // a key was pressed since the last frame
};

}  // namespace cpscope::gui
