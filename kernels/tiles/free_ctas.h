#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

namespace cpscope::kernels {

/// A model of CTAs that work at the same time: the one that is done first takes the next item.
class FreeCtas {
 public:
  explicit FreeCtas(int64_t ctas) : ctas_(ctas) {}

  /// Time at which the next item can begin.
  double begin() const {
    return static_cast<int64_t>(ends_.size()) < ctas_ ? 0.0 : ends_.top();
  }

  /// Gives the next item to the CTA that is free first. end: not before begin().
  void take_until(double end) {
    if (static_cast<int64_t>(ends_.size()) == ctas_) ends_.pop();
    ends_.push(end);
    last_ = std::max(last_, end);
  }

  /// Time at which all items are done.
  double last() const { return last_; }

 private:
  int64_t ctas_;
  std::priority_queue<double, std::vector<double>, std::greater<>> ends_;
  double last_ = 0.0;
};

}  // namespace cpscope::kernels
