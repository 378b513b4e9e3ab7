#pragma once

#include "sim/base/run_control.h"
#include "sim/findings/progress_lines.h"
#include "sim/run/grade/case.h"

#include <chrono>
#include <string>
#include <string_view>

namespace cpscope {

/// Tells on stderr how far long work is: on a terminal a bar, from the first second on, whose line
/// is cleared when it goes; elsewhere a line every ten seconds.
class ProgressBar {
 public:
  /// `subject`: what lines that stand between others are about; may be empty.
  explicit ProgressBar(bool is_wanted, std::string subject = "");
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Writes one line about work that is expected to take long.
  void announce(const WorkEstimate& estimate);
  /// A callback that draws the bar under this name; empty when no bar is wanted.
  Progress phase(std::string name);
  /// The same for work that knows its share.
  ShareDone share(std::string name);
  /// The same for work that names its phases.
  CaseProgress phases();

 private:
  void show(std::string_view name, double share);
  void draw(std::string_view name, double share);
  void write_line(const std::string& text) const;

  bool is_wanted_, is_terminal_;
  std::string subject_;
  bool has_drawn_ = false;
  std::chrono::steady_clock::time_point start_, last_;
  ProgressLines lines_;
};

}  // namespace cpscope
