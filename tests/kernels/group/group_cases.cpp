#include "tests/kernels/group/group_cases.h"

#include <array>
#include <csignal>
#include <thread>
#include <utility>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace cpscope::kernels::tests {

namespace {

// File descriptor that say() writes to in a forked process.
int to_parent = -1;

}  // namespace

int32_t find_free_port() {
  const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  bind(descriptor, reinterpret_cast<sockaddr*>(&address), size);
  getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size);
  close(descriptor);
  return ntohs(address.sin_port);
}

GroupLimits short_limits() {
  using std::chrono::milliseconds;
  return {.join_within = milliseconds{20'000},
          .heartbeat = milliseconds{25},
          .hang_after = milliseconds{1'500},
          .notice_within = milliseconds{200}};
}

LaunchPlace place_of(int32_t process, int32_t num_processes, int32_t port) {
  LaunchPlace place;
  place.launcher = "test";
  place.process = place.local_process = process;
  place.num_processes = place.num_local_processes = num_processes;
  place.port = port;
  return place;
}

std::string take_part(const LaunchPlace& place, const Member& member) {
  Result<std::unique_ptr<ProcessGroup>> group = ProcessGroup::join(place, short_limits(), {});
  if (!group) return to_text(group.error());
  return member(*group.value());
}

std::vector<std::string> run_in_threads(int32_t num_processes, const Member& member) {
  const int32_t port = find_free_port();
  std::vector<std::string> reports(static_cast<size_t>(num_processes));
  std::vector<std::jthread> threads;
  for (int32_t process = 0; process < num_processes; ++process) {
    threads.emplace_back([&, process] {
      reports[static_cast<size_t>(process)] =
          take_part(place_of(process, num_processes, port), member);
    });
  }
  threads.clear();
  return reports;
}

ForkedMember::ForkedMember(const LaunchPlace& place, const Member& member) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) return;
  pid_ = fork();
  if (pid_ != 0) {
    close(ends[1]);
    from_child_ = ends[0];
    return;
  }
  close(ends[0]);
  to_parent = ends[1];
  say(take_part(place, member));
  _exit(0);
}

ForkedMember::ForkedMember(ForkedMember&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      from_child_(std::exchange(other.from_child_, -1)),
      heard_(std::move(other.heard_)) {}

ForkedMember::~ForkedMember() {
  if (pid_ > 0) {
    send_signal(SIGKILL);
    finish();
  }
}

bool ForkedMember::wait_for(const std::string& word) {
  while (heard_.find(word) == std::string::npos) {
    std::array<char, 4096> part{};
    const ssize_t count = read(from_child_, part.data(), part.size());
    if (count <= 0) return false;
    heard_.append(part.data(), static_cast<size_t>(count));
  }
  return true;
}

void ForkedMember::send_signal(int signal) const { kill(pid_, signal); }

std::string ForkedMember::finish() {
  wait_for("\n--\n");  // never sent: reads to the end
  close(from_child_);
  waitpid(std::exchange(pid_, -1), nullptr, 0);
  return heard_;
}

void say(const std::string& word) {
  [[maybe_unused]] const ssize_t written = write(to_parent, word.data(), word.size());
}

void hang() {
  while (true) pause();
}

}  // namespace cpscope::kernels::tests
