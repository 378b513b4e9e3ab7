#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

namespace cpscope::kernels {

/// Threads that enqueue work on several devices at the same time. Enqueuing a copy costs the host
/// some microseconds, and the last of many devices should not start only after the sum of these.
/// The threads poll for a while before they sleep, because passes follow each other closely.
class DeviceWorkers {
 public:
  /// `count` includes the calling thread.
  explicit DeviceWorkers(size_t count);
  ~DeviceWorkers();
  DeviceWorkers(const DeviceWorkers&) = delete;
  DeviceWorkers& operator=(const DeviceWorkers&) = delete;

  /// Calls work(0) to work(count - 1), each on a thread of its own, and waits for all. Then
  /// rethrows the first exception, if any.
  void run(const std::function<void(size_t)>& work);

 private:
  void serve(size_t index);
  void work_on(size_t index) noexcept;

  const std::function<void(size_t)>* work_ = nullptr;
  std::atomic<uint64_t> round_ = 0;   // calls of run so far
  std::atomic<size_t> num_done_ = 0;  // threads that have finished the current call
  std::atomic<bool> is_ending_ = false;
  std::vector<std::exception_ptr> failures_;  // [index] of the current call
  std::vector<std::jthread> threads_;
};

}  // namespace cpscope::kernels
