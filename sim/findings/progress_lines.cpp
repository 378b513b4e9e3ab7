#include "sim/findings/progress_lines.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace cpscope {
namespace {

constexpr double kLongSeconds = 10;     // from which on work is announced
constexpr double kSecondsBetween = 10;  // two lines
constexpr double kTellingShare = 0.05;  // from which on the time left is estimated

std::string count_of(int64_t count, std::string_view unit) {
  return fmt::format("{} {}{}", count, unit, count == 1 ? "" : "s");
}

/// "1.2e13"
std::string print_flops(double flops) {
  const std::string text = fmt::format("{:.1e}", flops);
  const size_t sign = text.find('+');
  const size_t digit = text.find_first_not_of("+0", sign);
  if (sign == std::string::npos || digit == std::string::npos) return text;
  return text.substr(0, sign) + text.substr(digit);
}

}  // namespace

std::string describe_seconds(double seconds) {
  if (seconds < 10) return count_of(std::max<int64_t>(1, std::llround(seconds)), "second");
  if (seconds < 55) return count_of(10 * std::llround(seconds / 10), "second");
  if (seconds < 90 * 60)
    return count_of(std::max<int64_t>(1, std::llround(seconds / 60)), "minute");
  return fmt::format("{:.1f} hours", seconds / 3600);
}

std::optional<std::string> describe_long_work(const WorkEstimate& estimate) {
  if (estimate.seconds < kLongSeconds) return std::nullopt;
  return fmt::format("about {}: {} FLOP on {}", describe_seconds(estimate.seconds),
                     print_flops(estimate.flops), count_of(estimate.cores, "core"));
}

std::optional<std::string> ProgressLines::line(std::string_view phase, double share,
                                               double seconds) {
  if (phase != phase_ || share < share_) {
    phase_ = phase;
    phase_began_ = last_call_;
  }
  share_ = share;
  last_call_ = seconds;
  if (seconds - last_line_ < kSecondsBetween) return std::nullopt;
  last_line_ = seconds;
  std::string text = fmt::format("{}: {:.0f} %", phase, std::floor(100 * share));
  // The first parts of a phase tell little of its length.
  if (share >= kTellingShare)
    text += fmt::format(", about {} left",
                        describe_seconds((seconds - phase_began_) * (1 - share) / share));
  return text;
}

}  // namespace cpscope
