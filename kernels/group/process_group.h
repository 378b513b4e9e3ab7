#pragma once

#include "kernels/group/group_watch.h"
#include "kernels/group/launch_place.h"
#include "kernels/group/tcp_socket.h"
#include "sim/base/result.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace cpscope::kernels {

struct GroupLimits {
  std::chrono::milliseconds join_within{120'000};  // launchers may start processes late
  std::chrono::milliseconds heartbeat{500};
  std::chrono::milliseconds hang_after{20'000};  // without a message or without a move
  // Longest time, after the group has stopped, that this process may continue without noticing.
  std::chrono::milliseconds notice_within{5'000};
};

/// The processes that work on one plan, connected to process 0 by TCP: they exchange small
/// messages, gather answers, and watch that all are alive. When a process ends, hangs or reports a
/// failure, every call of every other process returns an Error of kind failed that names it, where
/// it was and why, at most 4/3 of `hang_after` later. The network is trusted: a process that knows
/// the port and the job can join while the group forms.
///
/// One thread, the main thread of the process, calls the collectives; all processes call the same
/// ones in the same order. The other functions may be called from any thread.
class ProcessGroup {
 public:
  /// Waits for all processes; a single process needs no network.
  /// `when_stuck` is called from a thread of the group when the group has stopped and this process
  /// did not notice in time, because a call of its main thread does not return. It may be empty. It
  /// must not call the group.
  static Result<std::unique_ptr<ProcessGroup>> join(const LaunchPlace& place,
                                                    const GroupLimits& limits,
                                                    std::function<void()> when_stuck);
  /// Sends goodbye after all queued messages. The others must not expect any more messages.
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int32_t process() const;
  int32_t num_processes() const;

  /// Sets the name of this process in messages; initially "rank <process>".
  void set_name(const std::string& name);
  /// Reports the progress of this process. Counts as a move.
  void publish(WorkPoint point);
  /// Reports that the main thread is alive, although its work may not advance.
  void move();

  /// Returns the bytes of process 0.
  Result<Bytes> broadcast(Bytes bytes);
  /// Returns [process] on process 0, and an empty vector elsewhere.
  Result<std::vector<Bytes>> gather(Bytes bytes);
  /// Returns when all processes have called it.
  Result<bool> barrier();

  /// Reports to all processes that this one stops, and why.
  void fail(const std::string& why);
  /// The reason why the group stopped, such as "rank 2 stopped at backward step 3: its process
  /// ended"; nothing while all processes run.
  std::optional<std::string> why_stopped();

 private:
  class State;
  explicit ProcessGroup(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// The Error that an executor returns for why_stopped().
Error stopped_error(const std::string& why);

}  // namespace cpscope::kernels
