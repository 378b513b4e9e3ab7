#pragma once

#include "sim/base/run_control.h"
#include "sim/run/grade/case.h"

#include <chrono>
#include <string>
#include <string_view>

namespace cpscope {

/// A bar on stderr for work that takes longer than a second, only on a terminal. Clears its line
/// when it goes.
class ProgressBar {
 public:
  explicit ProgressBar(bool is_wanted);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// A callback that draws the bar under this name; empty when no bar is wanted.
  Progress phase(std::string name);
  /// The same for work that names its phases.
  CaseProgress phases();

 private:
  void draw(std::string_view name, int64_t done, int64_t total);

  bool is_shown_;
  bool has_drawn_ = false;
  std::chrono::steady_clock::time_point start_, last_;
};

}  // namespace cpscope
