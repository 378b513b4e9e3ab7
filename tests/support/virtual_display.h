#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace cpscope::tests {

/// A running child process, ended when the object is destroyed.
class Process {
 public:
  /// `environment` ("NAME=value") is added to the inherited one. `in_folder`: its working
  /// directory.
  Process(const std::vector<std::string>& words, const std::vector<std::string>& environment,
          const std::string& in_folder);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  /// Its exit code once it has ended; nothing when it is still running after `seconds`.
  std::optional<int> wait(double seconds);

 private:
  pid_t id_ = -1;
  std::optional<int> code_;
};

/// An X server that paints into memory. Requires Xvfb.
class VirtualDisplay {
 public:
  VirtualDisplay(int width, int height);

  /// ":99"; empty when the server did not start.
  const std::string& name() const { return name_; }
  /// Runs one xdotool command on it, e.g. "mousemove 10 20", and returns its output.
  std::string hand(const std::string& words) const;

 private:
  std::unique_ptr<Process> server_;
  std::string name_;
};

/// True if there is a program of this name on the path.
bool has_program(const std::string& name);

}  // namespace cpscope::tests
