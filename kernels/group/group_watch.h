#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cpscope::kernels {

/// What a process is doing. Nobody expects it to move while it is `unwatched` (making inputs,
/// grading); everything else belongs to a run, in this order.
enum class Activity : uint8_t { unwatched, preparing, forward, backward, finishing };

/// How far a process is. Runs and steps are counted from 0; `step` means something forward and
/// backward.
struct WorkPoint {
  int64_t run = 0;
  Activity activity = Activity::unwatched;
  int32_t step = 0;

  friend auto operator<=>(const WorkPoint&, const WorkPoint&) = default;
};

/// What a heartbeat says.
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

/// Decides from what was heard, and when, whether a process has stopped. It neither sends nor asks
/// a clock.
class GroupWatch {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// Watches processes [0, num_processes); `hang_after`: how long one may be silent or not move.
  GroupWatch(int32_t num_processes, std::chrono::milliseconds hang_after, Time now);

  /// A heartbeat of a process.
  void hear(int32_t process, const SignOfLife& sign, Time now);
  /// Any other bytes of it.
  void hear_bytes(int32_t process, Time now);
  /// Its connection has ended.
  void lose(int32_t process);
  /// It said that it goes: nothing is expected of it any more.
  void release(int32_t process);
  bool has_left(int32_t process) const { return at(process).has_left; }
  const SignOfLife& last_sign(int32_t process) const { return at(process).sign; }

  /// The process that stopped by itself, if any. In this order: its connection ended; it was
  /// silent; its main thread does not move.
  std::optional<StoppedProcess> find_stopped(Time now) const;
  /// For whoever watches all processes: when the work of nobody has moved, the one that is least
  /// far, because the others wait for it.
  std::optional<StoppedProcess> find_stalled(Time now) const;

 private:
  struct Member {
    SignOfLife sign;
    Time heard;  // anything
    Time moved;  // its main thread
    bool is_lost = false;
    bool has_left = false;
  };
  const Member& at(int32_t process) const { return members_[static_cast<size_t>(process)]; }
  Member& at(int32_t process) { return members_[static_cast<size_t>(process)]; }

  std::chrono::milliseconds hang_after_;
  std::vector<Member> members_;  // [process]
  Time advanced_;                // when some process was seen at a new point
};

}  // namespace cpscope::kernels
