#pragma once

#include "sim/run/grade/work_estimate.h"

#include <optional>
#include <string>
#include <string_view>

namespace cpscope {

/// A time for readers: "40 seconds", "3 minutes", "2.5 hours".
std::string describe_seconds(double seconds);

/// The line before long work: "about 3 minutes: 1.2e13 FLOP on 2 cores". Nothing for short work.
std::optional<std::string> describe_long_work(const WorkEstimate& estimate);

/// The lines that tell of long work where there is no terminal, one every ten seconds.
class ProgressLines {
 public:
  /// The line that is due `seconds` after the work began, if one is: "run: 34 %, about 2 minutes
  /// left". Another phase, or a share that falls, begins anew.
  std::optional<std::string> line(std::string_view phase, double share, double seconds);

 private:
  std::string phase_;
  double share_ = 0;
  double phase_began_ = 0, last_call_ = 0, last_line_ = 0;  // seconds
};

}  // namespace cpscope
