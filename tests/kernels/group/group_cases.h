#pragma once

#include "kernels/group/process_group.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace cpscope::kernels::tests {

/// A free port of the loopback.
int32_t find_free_port();

/// Short limits for tests, long enough for a busy machine.
GroupLimits short_limits();

LaunchPlace place_of(int32_t process, int32_t num_processes, int32_t port);

/// The action of one member of a group; it returns its report.
using Member = std::function<std::string(ProcessGroup&)>;

/// Joins as thread `process` of this process and runs the member; returns its report, or the text
/// of the error.
std::string take_part(const LaunchPlace& place, const Member& member);

/// Runs every member in a separate thread; returns the reports by process.
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
  /// Everything it wrote with say(), and its report, after its end.
  std::string finish();

 private:
  int pid_ = -1;
  int from_child_ = -1;
  std::string heard_;
};

/// For members in a forked process: sends a word to the parent.
void say(const std::string& word);

/// Does not return.
[[noreturn]] void hang();

}  // namespace cpscope::kernels::tests
