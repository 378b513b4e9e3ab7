#pragma once

#include "sim/base/result.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

namespace cpscope {

/// Reports progress of long work: done of total units, never decreasing, never from two threads at
/// once. May be empty.
using Progress = std::function<void(int64_t done, int64_t total)>;

/// Reports the share of long work that is done, from 0 to 1; called as Progress is. May be empty.
using ShareDone = std::function<void(double share)>;

/// Progress and cancellation of long work.
struct RunControl {
  Progress progress = {};
  // Called between items, from any thread, until it first returns true. Empty: never cancelled.
  std::function<bool()> is_cancelled = {};
  ShareDone share = {};  // finer than `progress`, and in step with time, where work knows its size
};

/// Work under a RunControl. It continues until is_cancelled() is true; then the worker skips the
/// rest, discards its results and returns error(). Safe from any thread.
class RunWatch {
 public:
  /// `work`: the size of all units together, in any measure; 0: all units count alike.
  RunWatch(const RunControl& control, int64_t total, double work = 0)
      : control_(control), total_(total), work_(work) {}

  bool is_cancelled() {
    if (is_cancelled_.load(std::memory_order_relaxed)) return true;
    if (!control_.is_cancelled || !control_.is_cancelled()) return false;
    is_cancelled_.store(true, std::memory_order_relaxed);
    return true;
  }
  bool was_cancelled() const { return is_cancelled_.load(std::memory_order_relaxed); }

  /// Reports that one more unit is finished.
  void advance() {
    const std::lock_guard lock(mutex_);
    ++done_;
    report();
  }

  /// Reports that `done` units are finished; a smaller number than an earlier one is ignored.
  void reach(int64_t done) {
    const std::lock_guard lock(mutex_);
    if (done <= done_) return;
    done_ = done;
    report();
  }

  /// Reports that work of this size is finished, in or between units.
  void add_work(double work) {
    if (work_ <= 0 || !control_.share) return;
    const std::lock_guard lock(mutex_);
    work_done_ += work;
    control_.share(std::min(1.0, work_done_ / work_));
  }

  /// The error of a cancelled watch: "the run was cancelled after 3 of 96 items", kind unavailable.
  Error error(const std::string& work, const std::string& units) const;

 private:
  void report() const {
    if (control_.progress) control_.progress(done_, total_);
    if (control_.share && work_ <= 0)
      control_.share(static_cast<double>(done_) / static_cast<double>(total_));
  }

  const RunControl& control_;
  const int64_t total_;
  const double work_;
  std::atomic<bool> is_cancelled_ = false;
  mutable std::mutex mutex_;  // guards what is done, and calls of progress and share
  int64_t done_ = 0;
  double work_done_ = 0;
};

}  // namespace cpscope
