#include "gui/app/document/background.h"

#ifdef __EMSCRIPTEN__
#include <vector>
#else
#include <condition_variable>
#include <mutex>
#include <stop_token>
#include <thread>
#endif

namespace cpscope::gui {

#ifdef __EMSCRIPTEN__

struct Worker::Thread {};

namespace {

std::vector<std::function<void()>>& posted_jobs() {
  static std::vector<std::function<void()>> jobs;
  return jobs;
}

}  // namespace

// A replaced task needs no removal: its is_stopped flag is set, and it then returns at once.
void Worker::post(std::function<void()> job) { posted_jobs().push_back(std::move(job)); }

void carry_out_posted() {
  for (const std::function<void()>& job : std::exchange(posted_jobs(), {})) job();
}

#else

struct Worker::Thread {
  std::mutex mutex;
  std::condition_variable_any wake;
  std::function<void()> next;
  std::jthread thread;

  Thread() {
    thread = std::jthread([this](const std::stop_token& stop) {
      while (true) {
        std::function<void()> job;
        {
          std::unique_lock lock(mutex);
          if (!wake.wait(lock, stop, [this] { return next != nullptr; })) return;
          job = std::exchange(next, nullptr);
        }
        job();
      }
    });
  }
};

void Worker::post(std::function<void()> job) {
  if (!thread_) thread_ = std::make_unique<Thread>();
  {
    const std::lock_guard lock(thread_->mutex);
    thread_->next = std::move(job);
  }
  thread_->wake.notify_one();
}

void carry_out_posted() {}

#endif

Worker::Worker() = default;
Worker::~Worker() = default;
Worker::Worker(Worker&&) noexcept = default;
Worker& Worker::operator=(Worker&&) noexcept = default;

}  // namespace cpscope::gui
