#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

namespace cpscope::gui {

/// Shared by the waiting and the working thread: the progress of the work, and the request to stop.
struct TaskControl {
  std::atomic<double> progress{0.0};     // [0, 1]
  std::function<void(double)> reported;  // told of it where no thread waits; may be empty
  std::atomic<bool> is_stopped{false};
  std::atomic<bool> is_done{false};

  void reach(double share) {
    progress = share;
    if (reported) reported(share);
  }
};

/// One thread that carries out the newest job that was posted; jobs that were replaced before they
/// began are never run. The thread begins with the first job and ends with the object, after the
/// job in hand. Without threads (WebAssembly) a job waits for carry_out_posted().
class Worker {
 public:
  Worker();
  ~Worker();
  Worker(Worker&&) noexcept;
  Worker& operator=(Worker&&) noexcept;

  void post(std::function<void()> job);

 private:
  struct Thread;
  std::unique_ptr<Thread> thread_;
};

/// Without threads, carries out the posted work and returns when it is done; called between two
/// frames, or by a caller that waits. With threads, it does nothing.
void carry_out_posted();

/// Work in the background whose result is handed over by value. A new start abandons the earlier
/// work: it receives a stop request, and its result is never used.
template <class T>
class Task {
 public:
  using Work = std::function<T(TaskControl&)>;
  /// Returns the result of work that is done elsewhere; null before.
  using Poll = std::function<std::unique_ptr<T>(TaskControl&)>;

  Task() = default;
  ~Task() { cancel(); }
  Task(Task&&) noexcept = default;
  Task& operator=(Task&& other) noexcept {
    // Requests the work of this task to stop, before waiting for it.
    if (this != &other) cancel();
    run_ = std::move(other.run_);
    worker_ = std::move(other.worker_);
    return *this;
  }

  void start(Work work) {
    cancel();
    run_ = std::make_shared<Run>();
    worker_.post([run = run_, work = std::move(work)] {
      if (run->control.is_stopped) return;
      run->result = std::make_unique<T>(work(run->control));
      run->control.is_done = true;
    });
  }
  /// Waits for work that is done elsewhere, e.g. by a worker of the browser: take() asks `poll` for
  /// its result. `poll` is destroyed with the work, and must end it then.
  void wait_for(Poll poll) {
    cancel();
    run_ = std::make_shared<Run>();
    run_->poll = std::move(poll);
  }
  /// Requests the work to stop and forgets it.
  void cancel() {
    if (run_) run_->control.is_stopped = true;
    run_.reset();
  }
  bool is_running() const { return run_ != nullptr; }
  double progress() const { return run_ ? run_->control.progress.load() : 1.0; }
  /// Returns the result once; null while the work is running.
  std::unique_ptr<T> take() {
    if (!run_) return nullptr;
    std::unique_ptr<T> result;
    if (run_->poll)
      result = run_->poll(run_->control);
    else if (run_->control.is_done)
      result = std::move(run_->result);
    if (result) run_.reset();
    return result;
  }

 private:
  struct Run {
    TaskControl control;
    std::unique_ptr<T> result;  // written before is_done, read after it
    Poll poll;                  // of work that is done elsewhere; else empty
  };
  std::shared_ptr<Run> run_;
  Worker worker_;
};

}  // namespace cpscope::gui
