#pragma once

#include "kernels/group/process_group.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace cpscope::kernels::tests {

/// A port of the loopback that nobody listens at now.
int32_t find_free_port();

/// Short limits for tests, long enough for a busy machine.
GroupLimits short_limits();

LaunchPlace place_of(int32_t process, int32_t num_processes, int32_t port);

/// What one member of a group does; what it returns is its report.
using Member = std::function<std::string(ProcessGroup&)>;

/// Joins as thread `process` of this process, runs the member; the report, or the error's text.
std::string take_part(const LaunchPlace& place, const Member& member);

/// Every member in a thread of its own; reports by process.
std::vector<std::string> run_in_threads(int32_t num_processes, const Member& member);

/// A forked process that takes part.
class ForkedMember {
 public:
  ForkedMember(const LaunchPlace& place, const Member& member);
  ~ForkedMember();
  ForkedMember(ForkedMember&& other) noexcept;

  /// Waits until the member has written `word` with say().
  bool wait_for(const std::string& word);
  void send_signal(int signal) const;
  /// Everything it said and its report, after its end.
  std::string finish();

 private:
  int pid_ = -1;
  int from_child_ = -1;
  std::string heard_;
};

/// For members in a forked process: tells the parent something.
void say(const std::string& word);

/// Does not return.
[[noreturn]] void hang();

}  // namespace cpscope::kernels::tests
