#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

namespace cpscope::kernels {

/// A model of CTAs that work at the same time: the one that is done first takes the next item.
class FreeCtas {
 public:
  explicit FreeCtas(int64_t ctas) : ctas_(ctas) {}

  /// Time at which the next item can begin.
  double begin() const { return static_cast<int64_t>(ends_.size()) < ctas_ ? 0.0 : ends_.front(); }

  /// Gives the next item to the CTA that is free first. end: not before begin().
  void take_until(double end) {
    if (static_cast<int64_t>(ends_.size()) == ctas_) {
      std::pop_heap(ends_.begin(), ends_.end(), std::greater<>());
      ends_.back() = end;
    } else {
      ends_.push_back(end);
    }
    std::push_heap(ends_.begin(), ends_.end(), std::greater<>());
    last_ = std::max(last_, end);
  }

  /// Time at which all items are done.
  double last() const { return last_; }

  /// Time at which each CTA is free, in no order.
  std::vector<double> times() const {
    std::vector<double> all = ends_;
    all.resize(static_cast<size_t>(ctas_), 0.0);
    return all;
  }

 private:
  int64_t ctas_;
  std::vector<double> ends_;  // a heap, the earliest first
  double last_ = 0.0;
};

}  // namespace cpscope::kernels
