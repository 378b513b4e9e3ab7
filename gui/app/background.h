#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

namespace cpscope::gui {

/// What who waits and who works share: how far the work is, and the wish that it ends.
struct TaskControl {
  std::atomic<double> progress{0.0};  // [0, 1]
  std::atomic<bool> is_stopped{false};
  std::atomic<bool> is_done{false};
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

/// Where there are no threads, does the work that was posted, and only then returns: to be called
/// between two frames, or by who waits. Elsewhere it has nothing to do.
void carry_out_posted();

/// Work in the background whose result is handed over by value. Starting anew abandons what was
/// begun: it is asked to stop, and its result is never seen.
template <class T>
class Task {
 public:
  using Work = std::function<T(TaskControl&)>;

  Task() = default;
  ~Task() { cancel(); }
  Task(Task&&) noexcept = default;
  Task& operator=(Task&& other) noexcept {
    // Whoever works for this task is asked to stop before it is waited for.
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
  /// Asks the work to stop and forgets it.
  void cancel() {
    if (run_) run_->control.is_stopped = true;
    run_.reset();
  }
  bool is_running() const { return run_ != nullptr; }
  double progress() const { return run_ ? run_->control.progress.load() : 1.0; }
  /// The result, once; null while the work goes on.
  std::unique_ptr<T> take() {
    if (!run_ || !run_->control.is_done) return nullptr;
    std::unique_ptr<T> result = std::move(run_->result);
    run_.reset();
    return result;
  }

 private:
  struct Run {
    TaskControl control;
    std::unique_ptr<T> result;  // written before is_done, read after it
  };
  std::shared_ptr<Run> run_;
  Worker worker_;
};

}  // namespace cpscope::gui
