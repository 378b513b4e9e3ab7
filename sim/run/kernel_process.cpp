#include "sim/run/kernel_process.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace cpscope {
namespace {

/// A call as sent. The plan has the same address on both sides of a fork; its lists need not have:
/// a plan of the same hash may have been made anew there since, and the child has the first one.
struct CallHeader {
  const Plan* plan = nullptr;
  int64_t item = 0;  // index of the pass's compute items
  Direction direction = Direction::forward;
  int64_t q_rows = 0, kv_rows = 0;
  HeadRange heads, kv_heads;
};

std::array<std::vector<double>*, 6> inputs_of(ItemCall& call) {
  return {&call.q, &call.k, &call.v, &call.out, &call.lse, &call.d_out};
}

std::array<std::vector<double>*, 6> results_of(ItemCall& call) {
  return {&call.out, &call.lse, &call.dq, &call.dk, &call.dv, &call.max_logit};
}

/// Result of an exchange with the other process.
enum class Talk { ok, closed, timed_out };

/// One end of a pair of sockets.
class Line {
 public:
  explicit Line(int file) : file_(file) {}
  ~Line() { close(file_); }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  Talk send_bytes(const void* bytes, size_t size) const {
    const auto* at = static_cast<const char*>(bytes);
    while (size > 0) {
      const ssize_t sent = send(file_, at, size, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent <= 0) return Talk::closed;
      at += sent;
      size -= static_cast<size_t>(sent);
    }
    return Talk::ok;
  }

  /// `seconds`: time to wait for each piece; 0 = without limit.
  Talk receive_bytes(void* bytes, size_t size, double seconds) const {
    auto* at = static_cast<char*>(bytes);
    while (size > 0) {
      if (seconds > 0) {
        pollfd waiting{file_, POLLIN, 0};
        const int ready = poll(&waiting, 1, static_cast<int>(std::min(seconds * 1000, 2e9)));
        if (ready < 0 && errno == EINTR) continue;
        if (ready == 0) return Talk::timed_out;
      }
      const ssize_t got = recv(file_, at, size, 0);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return Talk::closed;
      at += got;
      size -= static_cast<size_t>(got);
    }
    return Talk::ok;
  }

  Talk send_values(const std::vector<double>& values) const {
    const uint64_t count = values.size();
    const Talk talk = send_bytes(&count, sizeof count);
    return talk == Talk::ok ? send_bytes(values.data(), count * sizeof(double)) : talk;
  }
  Talk receive_values(std::vector<double>& values, double seconds) const {
    uint64_t count = 0;
    const Talk talk = receive_bytes(&count, sizeof count, seconds);
    if (talk != Talk::ok) return talk;
    values.resize(count);
    return receive_bytes(values.data(), count * sizeof(double), seconds);
  }

  Talk send_text(const std::string& text) const {
    const uint64_t count = text.size();
    const Talk talk = send_bytes(&count, sizeof count);
    return talk == Talk::ok ? send_bytes(text.data(), count) : talk;
  }
  Talk receive_text(std::string& text, double seconds) const {
    uint64_t count = 0;
    const Talk talk = receive_bytes(&count, sizeof count, seconds);
    if (talk != Talk::ok) return talk;
    text.resize(count);
    return receive_bytes(text.data(), count, seconds);
  }

  /// Sends an Error, or the information that there is none.
  Talk send_outcome(const std::optional<Error>& error) const {
    const char has_error = error ? 1 : 0;
    Talk talk = send_bytes(&has_error, 1);
    if (!error || talk != Talk::ok) return talk;
    const auto kind = static_cast<int32_t>(error->kind);
    talk = send_bytes(&kind, sizeof kind);
    const Complaint& complaint = error->complaints.front();
    for (const std::string* text : {&complaint.what, &complaint.where, &complaint.hint})
      if (talk == Talk::ok) talk = send_text(*text);
    return talk;
  }
  Talk receive_outcome(std::optional<Error>& error, double seconds) const {
    char has_error = 0;
    Talk talk = receive_bytes(&has_error, 1, seconds);
    if (talk != Talk::ok || has_error == 0) return talk;
    int32_t kind = 0;
    Complaint complaint;
    talk = receive_bytes(&kind, sizeof kind, seconds);
    for (std::string* text : {&complaint.what, &complaint.where, &complaint.hint})
      if (talk == Talk::ok) talk = receive_text(*text, seconds);
    error =
        make_error(static_cast<ErrorKind>(kind), complaint.what, complaint.hint, complaint.where);
    return talk;
  }

 private:
  const int file_;
};

/// Loop of the child: serves calls until the parent closes the connection.
void serve(const Line& line, const KernelMaker& make) {
  const Result<ItemKernel> kernel = make();
  const std::optional<Error> obstacle =
      kernel ? std::nullopt : std::optional<Error>(kernel.error());
  if (line.send_outcome(obstacle) != Talk::ok || obstacle) return;
  for (CallHeader header; line.receive_bytes(&header, sizeof header, 0) == Talk::ok;) {
    ItemCall call;
    call.plan = header.plan;
    call.direction = header.direction;
    call.item = &header.plan->pass(header.direction).computes[static_cast<size_t>(header.item)];
    call.q_rows = header.q_rows;
    call.kv_rows = header.kv_rows;
    call.heads = header.heads;
    call.kv_heads = header.kv_heads;
    for (std::vector<double>* values : inputs_of(call))
      if (line.receive_values(*values, 0) != Talk::ok) return;
    const std::optional<Error> error = kernel.value()(call);
    if (line.send_outcome(error) != Talk::ok) return;
    if (error) continue;
    for (const std::vector<double>* values : results_of(call))
      if (line.send_values(*values) != Talk::ok) return;
  }
}

/// The name of a signal that ends a process. glibc has a function for it from 2.32 on, macOS none.
std::string name_signal(int number) {
  constexpr std::array<std::pair<int, const char*>, 14> kNames = {{{SIGABRT, "SIGABRT"},
                                                                   {SIGALRM, "SIGALRM"},
                                                                   {SIGBUS, "SIGBUS"},
                                                                   {SIGFPE, "SIGFPE"},
                                                                   {SIGHUP, "SIGHUP"},
                                                                   {SIGILL, "SIGILL"},
                                                                   {SIGINT, "SIGINT"},
                                                                   {SIGKILL, "SIGKILL"},
                                                                   {SIGPIPE, "SIGPIPE"},
                                                                   {SIGSEGV, "SIGSEGV"},
                                                                   {SIGSYS, "SIGSYS"},
                                                                   {SIGTERM, "SIGTERM"},
                                                                   {SIGTRAP, "SIGTRAP"},
                                                                   {SIGXCPU, "SIGXCPU"}}};
  for (const auto& [known, name] : kNames) {
    if (known == number) return name;
  }
  return fmt::format("signal {}", number);
}

/// A child process that serves one plan.
class Child {
 public:
  Child(pid_t process, int file) : process_(process), line_(file) {}
  ~Child() {
    if (process_ <= 0) return;
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  const Line& line() const { return line_; }

  /// Waits for the process, which has closed its end, and describes how it ended.
  std::string describe_end() {
    int status = 0;
    const pid_t ended = waitpid(std::exchange(process_, 0), &status, 0);
    if (ended <= 0) return "has gone";
    if (WIFSIGNALED(status)) {
      const int number = WTERMSIG(status);
      return fmt::format("has crashed: {} ({})", name_signal(number), strsignal(number));
    }
    return fmt::format("has ended its process with exit code {}", WEXITSTATUS(status));
  }

 private:
  pid_t process_;
  Line line_;
};

double patience() {
  constexpr double kUsual = 600;
  const char* text = std::getenv("CPSCOPE_PLUGIN_SECONDS");
  const double asked = text == nullptr ? 0.0 : std::atof(text);
  return asked > 0 ? asked : kUsual;
}

class KernelProcess {
 public:
  KernelProcess(std::string name, KernelMaker make)
      : name_(std::move(name)), make_(std::move(make)) {}

  /// Starts a child and checks that it has the kernel.
  std::optional<Error> start() {
    child_.reset();
    std::array<int, 2> files{};
    // Text still in the buffer would be printed by both processes.
    std::cout.flush();
    std::cerr.flush();
    std::fflush(nullptr);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, files.data()) != 0) return no_process();
    const pid_t process = fork();
    if (process < 0) {
      close(files[0]);
      close(files[1]);
      return no_process();
    }
    if (process == 0) {
      close(files[0]);
      run_child(files[1]);
    }
    close(files[1]);
    child_ = std::make_unique<Child>(process, files[0]);
    std::optional<Error> error;
    const Talk talk = child_->line().receive_outcome(error, patience());
    if (talk != Talk::ok) error = explain(talk, "while it was opened", ErrorKind::unavailable);
    if (error) child_.reset();
    return error;
  }
  void stop() { child_.reset(); }

  std::optional<Error> call(ItemCall& call) {
    if (!child_ || call.plan != plan_ || call.plan->hash != hash_) {
      plan_ = call.plan;
      hash_ = call.plan->hash;
      if (auto error = start()) return error;
    }
    const Line& line = child_->line();
    const CallHeader header{
        call.plan,      call.item - call.plan->pass(call.direction).computes.data(),
        call.direction, call.q_rows,
        call.kv_rows,   call.heads,
        call.kv_heads};
    Talk talk = line.send_bytes(&header, sizeof header);
    for (const std::vector<double>* values : inputs_of(call))
      if (talk == Talk::ok) talk = line.send_values(*values);
    std::optional<Error> error;
    if (talk == Talk::ok) talk = line.receive_outcome(error, patience());
    if (talk == Talk::ok && error) return error;
    for (std::vector<double>* values : results_of(call))
      if (talk == Talk::ok) talk = line.receive_values(*values, patience());
    if (talk == Talk::ok) return std::nullopt;
    Error ended = explain(talk,
                          fmt::format("in {}, rank {}, step {}", to_name(call.direction),
                                      to_index(call.item->rank), to_index(call.item->step)),
                          ErrorKind::failed);
    child_.reset();
    return ended;
  }

 private:
  [[noreturn]] void run_child(int file) const {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (const int number : {SIGSEGV, SIGABRT, SIGFPE, SIGBUS, SIGILL, SIGINT, SIGTERM})
      std::signal(number, SIG_DFL);
    dup2(STDERR_FILENO, STDOUT_FILENO);
    std::setvbuf(stdout, nullptr, _IOLBF, 0);  // the parent ends this process without a flush
    {
      const Line line(file);
      serve(line, make_);
    }
    std::fflush(nullptr);
    // Destructors and exit handlers belong to the parent.
    _exit(0);
  }

  Error no_process() const {
    return make_error(ErrorKind::unavailable,
                      fmt::format("{} needs a process of its own, and none can be started: {}",
                                  name_, std::strerror(errno)));
  }

  Error explain(Talk talk, const std::string& when, ErrorKind kind) {
    if (talk == Talk::timed_out)
      return make_error(kind,
                        fmt::format("{} has not returned for {:g} s {}", name_, patience(), when),
                        "CPSCOPE_PLUGIN_SECONDS sets the time limit");
    return make_error(kind, fmt::format("{} {} {}", name_, child_->describe_end(), when));
  }

  const std::string name_;
  const KernelMaker make_;
  const Plan* plan_ = nullptr;
  uint64_t hash_ = 0;
  std::unique_ptr<Child> child_;
};

}  // namespace

Result<ItemKernel> isolate_kernel(const std::string& name, const KernelMaker& make) {
  const auto process = std::make_shared<KernelProcess>(name, make);
  if (auto error = process->start()) return *error;
  process->stop();
  return ItemKernel([process](ItemCall& call) { return process->call(call); });
}

}  // namespace cpscope
