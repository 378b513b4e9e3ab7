#include "sim/base/run_control.h"

#include <fmt/format.h>

namespace cpscope {

Error RunWatch::error(const std::string& work, const std::string& units) const {
  const std::lock_guard lock(mutex_);
  return make_error(ErrorKind::unavailable,
                    fmt::format("{} was cancelled after {} of {} {}", work, done_, total_, units));
}

}  // namespace cpscope
