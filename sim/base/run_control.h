#pragma once

#include "sim/base/result.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

namespace cpscope {

/// Reports progress of long work: done of total units, never decreasing, never from two threads at
/// once. May be empty.
using Progress = std::function<void(int64_t done, int64_t total)>;

/// Progress and cancellation of long work.
struct RunControl {
  Progress progress = {};
  // Called between items, from any thread, until it first returns true. Empty: never cancelled.
  std::function<bool()> is_cancelled = {};
};

/// Work under a RunControl. It continues until is_cancelled() is true; then the worker skips the
/// rest, discards its results and returns error(). Safe from any thread.
class RunWatch {
 public:
  RunWatch(const RunControl& control, int64_t total) : control_(control), total_(total) {}

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
    if (control_.progress) control_.progress(done_, total_);
  }

  /// Reports that `done` units are finished; a smaller number than an earlier one is ignored.
  void reach(int64_t done) {
    const std::lock_guard lock(mutex_);
    if (done <= done_) return;
    done_ = done;
    if (control_.progress) control_.progress(done, total_);
  }

  /// The error of a cancelled watch: "the run was cancelled after 3 of 96 items", kind unavailable.
  Error error(const std::string& work, const std::string& units) const;

 private:
  const RunControl& control_;
  const int64_t total_;
  std::atomic<bool> is_cancelled_ = false;
  mutable std::mutex mutex_;  // guards done_ and calls of progress
  int64_t done_ = 0;
};

}  // namespace cpscope
