#pragma once

#include <vector>

struct GLFWwindow;

namespace cpscope::gui {

/// Keys on their way from GLFW to Dear ImGui, which up to 1.86 sees them only as they are when a
/// frame begins: a key that goes down and up between two frames would be lost. So it comes up a
/// frame later.
class GlfwKeys {
 public:
  void answer(GLFWwindow* window, int key, int code, int action, int mods);
  /// After every frame. True when keys came up, so that another frame must follow.
  bool end_frame(GLFWwindow* window);

 private:
  struct Event {
    int key = 0, code = 0, action = 0, mods = 0;
  };
  std::vector<Event> releases_;  // told after the next frame
  bool has_press_ = false;       // a key went down since the last frame
};

}  // namespace cpscope::gui
