#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

namespace cpscope::kernels {

/// Threads that enqueue work on several devices at the same time: a copy costs the host some
/// microseconds, and the last of many devices should not begin after the sum of all. They wait
/// awake for a while, because passes follow each other closely.
class DeviceWorkers {
 public:
  /// The caller is one of `count`.
  explicit DeviceWorkers(size_t count);
  ~DeviceWorkers();
  DeviceWorkers(const DeviceWorkers&) = delete;
  DeviceWorkers& operator=(const DeviceWorkers&) = delete;

  /// Calls work(0) to work(count - 1), each on a thread of its own, and waits for all; then throws
  /// what the first of them threw, if any did.
  void run(const std::function<void(size_t)>& work);

 private:
  void serve(size_t index);
  void work_on(size_t index) noexcept;

  const std::function<void(size_t)>* work_ = nullptr;
  std::atomic<uint64_t> round_ = 0;   // calls of run so far
  std::atomic<size_t> num_done_ = 0;  // threads that are done with the present one
  std::atomic<bool> is_ending_ = false;
  std::vector<std::exception_ptr> failures_;  // [index] of the present call
  std::vector<std::jthread> threads_;
};

}  // namespace cpscope::kernels
