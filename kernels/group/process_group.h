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
  std::chrono::milliseconds hang_after{20'000};  // silent, or not moving
  // After the group has stopped: how long this process may go on without noticing.
  std::chrono::milliseconds notice_within{5'000};
};

/// The processes that work on one plan, connected to process 0 by TCP: small messages, gathered
/// answers, and the knowledge that all are alive. When a process ends, hangs or reports a failure,
/// every call of every other process returns an Error of kind failed that names it, where it
/// was and why; a third more than `hang_after` later at most. The network is trusted: whoever
/// knows the port and the job can join while the group forms.
///
/// One thread, the main thread of the process, calls the collectives; all processes call the same
/// ones in the same order. The other functions may be called from any thread.
class ProcessGroup {
 public:
  /// Waits for all processes; a single one needs no network.
  /// `when_stuck` is called from a thread of the group's own when the group has stopped and this
  /// process did not notice in time, because a call of its main thread does not return; may be
  /// empty. It must not call the group.
  static Result<std::unique_ptr<ProcessGroup>> join(const LaunchPlace& place,
                                                    const GroupLimits& limits,
                                                    std::function<void()> when_stuck);
  /// Says goodbye after everything queued has gone out. The others must not expect anything more.
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int32_t process() const;
  int32_t num_processes() const;

  /// What this process is called in messages; "rank <process>" at first.
  void set_name(const std::string& name);
  /// Where this process is. Counts as a move.
  void publish(WorkPoint point);
  /// The main thread is alive, although its work may not advance.
  void move();

  /// The bytes of process 0.
  Result<Bytes> broadcast(Bytes bytes);
  /// [process] on process 0, empty elsewhere.
  Result<std::vector<Bytes>> gather(Bytes bytes);
  /// All processes are here.
  Result<bool> barrier();

  /// Tells all processes that this one stops here, and why.
  void fail(const std::string& why);
  /// "rank 2 stopped at backward step 3: its process ended"; nothing while all is well.
  std::optional<std::string> why_stopped();

 private:
  class State;
  explicit ProcessGroup(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// The Error that why_stopped() is for an executor's caller.
Error stopped_error(const std::string& why);

}  // namespace cpscope::kernels
