#include "sim/clock/pass_clock.h"

#include <algorithm>
#include <utility>

namespace cpscope {

/// Length of the part of the sorted `stretches` that `covered` (sorted, disjoint) does not cover;
/// overlaps count once.
double uncovered_us(const std::vector<BusyTime>& stretches, const std::vector<BusyTime>& covered) {
  double sum = 0, done = 0;
  size_t first = 0;
  for (const BusyTime& stretch : stretches) {
    double now = std::max(stretch.begin, done);
    done = std::max(done, stretch.end);
    while (first < covered.size() && covered[first].end <= now) ++first;
    for (size_t i = first; i < covered.size() && covered[i].begin < stretch.end; ++i) {
      if (covered[i].begin > now) sum += covered[i].begin - now;
      now = std::max(now, covered[i].end);
    }
    if (stretch.end > now) sum += stretch.end - now;
  }
  return sum;
}

std::vector<BusyTime> joined(std::vector<BusyTime> stretches) {
  std::sort(stretches.begin(), stretches.end(), [](const BusyTime& a, const BusyTime& b) {
    return std::pair(a.begin, a.enqueued) < std::pair(b.begin, b.enqueued);
  });
  std::vector<BusyTime> result;
  for (const BusyTime& stretch : stretches) {
    if (!result.empty() && stretch.begin <= result.back().end) {
      result.back().end = std::max(result.back().end, stretch.end);
    } else {
      result.push_back(stretch);
    }
  }
  return result;
}

double length_of(const std::vector<BusyTime>& stretches) {
  double sum = 0;
  for (const BusyTime& stretch : stretches) sum += stretch.end - stretch.begin;
  return sum;
}

}  // namespace cpscope
