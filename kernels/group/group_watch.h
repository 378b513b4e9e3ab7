#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cpscope::kernels {

/// Activity of a process. It need not move while it is `unwatched` (making inputs, grading); all
/// other activities belong to a run, in this order.
enum class Activity : uint8_t { unwatched, preparing, forward, backward, finishing };

/// Progress of a process. Runs and steps are counted from 0; `step` is used forward and backward.
struct WorkPoint {
  int64_t run = 0;
  Activity activity = Activity::unwatched;
  int32_t step = 0;

  friend auto operator<=>(const WorkPoint&, const WorkPoint&) = default;
};

/// Content of a heartbeat.
struct SignOfLife {
  WorkPoint point;
  int64_t moves = 0;        // of the main thread; grows as long as it is alive
  bool is_waiting = false;  // in a collective, for others
  std::string name;         // "rank 2", "ranks 8 to 15"
};

/// A process that stopped.
struct StoppedProcess {
  int32_t process = 0;
  std::string what;  // "rank 2 stopped at backward step 3: its process ended"
};

std::string stop_text(const SignOfLife& sign, const std::string& why);

/// Decides from the messages received, and their times, whether a process has stopped. It sends
/// nothing and reads no clock.
class GroupWatch {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// Watches processes [0, num_processes); `hang_after`: longest time without a message or without
  /// a move.
  GroupWatch(int32_t num_processes, std::chrono::milliseconds hang_after, Time now);

  /// Records a heartbeat of a process.
  void hear(int32_t process, const SignOfLife& sign, Time now);
  /// Records any other bytes from it.
  void hear_bytes(int32_t process, Time now);
  /// Records that its connection has ended.
  void lose(int32_t process);
  /// Records its goodbye: nothing is expected of it any more.
  void release(int32_t process);
  bool has_left(int32_t process) const { return at(process).has_left; }
  const SignOfLife& last_sign(int32_t process) const { return at(process).sign; }

  /// The process that stopped by itself, if any. Checked in this order: its connection ended; it
  /// was silent; its main thread does not move.
  std::optional<StoppedProcess> find_stopped(Time now) const;
  /// For the process that watches all: when no process has advanced, the one with the least
  /// progress, because the others wait for it.
  std::optional<StoppedProcess> find_stalled(Time now) const;

 private:
  struct Member {
    SignOfLife sign;
    Time heard;  // last message of any kind
    Time moved;  // last move of its main thread
    bool is_lost = false;
    bool has_left = false;
  };
  const Member& at(int32_t process) const { return members_[static_cast<size_t>(process)]; }
  Member& at(int32_t process) { return members_[static_cast<size_t>(process)]; }

  std::chrono::milliseconds hang_after_;
  std::vector<Member> members_;  // [process]
  Time advanced_;                // when some process was last seen at a new point
};

}  // namespace cpscope::kernels
