#include "kernels/device/device_workers.h"

#include <algorithm>

namespace cpscope::kernels {
namespace {

// Number of polls before a thread goes to sleep: about a millisecond.
constexpr int kLooksAwake = 20'000;

template <class IsThere>
void wait_awake(IsThere is_there) {
  for (int look = 0; !is_there() && look < kLooksAwake; ++look) std::this_thread::yield();
}

}  // namespace

DeviceWorkers::DeviceWorkers(size_t count) : failures_(count) {
  for (size_t index = 1; index < count; ++index)
    threads_.emplace_back([this, index] { serve(index); });
}

DeviceWorkers::~DeviceWorkers() {
  is_ending_ = true;
  ++round_;
  round_.notify_all();
}

void DeviceWorkers::work_on(size_t index) noexcept {
  failures_[index] = nullptr;
  try {
    (*work_)(index);
  } catch (...) {
    failures_[index] = std::current_exception();
  }
}

void DeviceWorkers::serve(size_t index) {
  for (uint64_t seen = 0;;) {
    wait_awake([&] { return round_ != seen; });
    round_.wait(seen);
    // A round begins only after all threads have finished the previous one, so none is missed.
    ++seen;
    if (is_ending_) return;
    work_on(index);
    ++num_done_;
    num_done_.notify_one();
  }
}

void DeviceWorkers::run(const std::function<void(size_t)>& work) {
  work_ = &work;
  num_done_ = 0;
  ++round_;
  round_.notify_all();
  work_on(0);
  wait_awake([&] { return num_done_ == threads_.size(); });
  for (size_t done = num_done_; done < threads_.size(); done = num_done_) num_done_.wait(done);
  const auto failed =
      std::find_if(failures_.begin(), failures_.end(),
                   [](const std::exception_ptr& failure) { return failure != nullptr; });
  if (failed != failures_.end()) std::rethrow_exception(*failed);
}

}  // namespace cpscope::kernels
