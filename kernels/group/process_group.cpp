#include "kernels/group/process_group.h"

#include "kernels/group/group_join.h"
#include "kernels/group/group_message.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace cpscope::kernels {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

namespace {

// Longest time that a leaving process waits for the others to notice.
constexpr std::chrono::seconds kFarewell{2};

}  // namespace

Error stopped_error(const std::string& why) {
  return make_error(ErrorKind::failed, why, "the other processes stopped with it");
}

/// State that the main thread and the thread of the group share.
class ProcessGroup::State {
 public:
  State(const LaunchPlace& place, const GroupLimits& limits, std::function<void()> when_stuck,
        std::vector<Connection> connections)
      : place_(place),
        limits_(limits),
        when_stuck_(std::move(when_stuck)),
        connections_(std::move(connections)),
        // Process 0 watches all, itself included; the others watch process 0.
        watch_(place.process == 0 ? place.num_processes : 1, limits.hang_after, Clock::now()),
        inbox_(static_cast<size_t>(place.num_processes)),
        wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    sign_.name = fmt::format("rank {}", place.process);
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }

  ~State() {
    {
      std::unique_lock lock(mutex_);
      queue_for_all(MessageKind::goodbye, {});
      wake();
      // Answers of this process may still be in flight. Once the group has stopped, no process
      // needs them; only the message that it stopped must be sent.
      const auto all_of = [&](auto is_done) {
        return std::all_of(connections_.begin(), connections_.end(),
                           [&](const Connection& c) { return !c.is_open() || is_done(c); });
      };
      const auto is_flushed = [&] {
        return all_of([](const Connection& c) { return !c.has_unsent(); });
      };
      changed_.wait(lock, [&] { return is_flushed() || stopped_.has_value(); });
      changed_.wait_for(lock, kFarewell, is_flushed);
      // Closing a socket with unread bytes would discard what the others have not read yet, so they
      // close first.
      is_leaving_ = true;
      for (Connection& connection : connections_) connection.end_sending();
      changed_.wait_for(lock, kFarewell,
                        [&] { return all_of([](const Connection&) { return false; }); });
    }
    if (thread_.joinable()) {
      thread_.request_stop();
      wake();
      thread_.join();
    }
    ::close(wake_);
  }

  const LaunchPlace& place() const { return place_; }

  void set_name(const std::string& name) {
    const std::lock_guard lock(mutex_);
    sign_.name = name;
  }

  void publish(WorkPoint point) {
    const std::lock_guard lock(mutex_);
    sign_.point = point;
    move();
    // Sent immediately, so that all know where a process was when it died.
    send_heartbeat();
    wake();
  }

  // Loops that wait for a device call these two all the time, so they do not take the lock.
  void move() { moves_.fetch_add(1, std::memory_order_relaxed); }

  std::optional<std::string> why_stopped() {
    if (!is_stopped_.load(std::memory_order_acquire)) return std::nullopt;
    const std::lock_guard lock(mutex_);
    has_noticed_ = stopped_.has_value();
    return stopped_;
  }

  void fail(const std::string& why) {
    const std::lock_guard lock(mutex_);
    has_noticed_ = true;
    stop_all(stop_text(sign_, why));
    wake();
  }

  Result<Bytes> broadcast(Bytes bytes) {
    std::unique_lock lock(mutex_);
    const DataHead head{Collective::broadcast, next_sequence_++};
    if (place_.process != 0) return take_from(0, head, lock);
    if (const auto stopped = send_to_all(head, bytes, lock)) return *stopped;
    return bytes;
  }

  Result<std::vector<Bytes>> gather(Bytes bytes) {
    std::unique_lock lock(mutex_);
    const DataHead head{Collective::gather, next_sequence_++};
    std::vector<Bytes> all;
    if (place_.process != 0) {
      if (const auto stopped = send_to_all(head, bytes, lock)) return *stopped;
      return all;
    }
    all.push_back(std::move(bytes));
    for (int32_t process = 1; process < place_.num_processes; ++process) {
      Result<Bytes> part = take_from(process, head, lock);
      if (!part) return part.error();
      all.push_back(std::move(part).value());
    }
    return all;
  }

 private:
  // ---- with the lock held, any thread ----

  Error notice() {
    has_noticed_ = true;
    return stopped_error(*stopped_);
  }

  void wake() const {
    const uint64_t one = 1;
    // A full counter wakes the thread as well.
    [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof one);
  }

  /// Sends data to every process that this one is connected to. It is copied without the lock,
  /// because the copy of many GiB takes longer than a heartbeat may.
  std::optional<Error> send_to_all(const DataHead& head, const Bytes& bytes,
                                   std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    const auto wire =
        std::make_shared<const Bytes>(frame_message(MessageKind::data, encode_data(head, bytes)));
    lock.lock();
    if (stopped_) return notice();
    queue_for_all(wire);
    wake();
    return std::nullopt;
  }

  void queue_for_all(MessageKind kind, const Bytes& body) {
    queue_for_all(std::make_shared<const Bytes>(frame_message(kind, body)));
  }

  void queue_for_all(const std::shared_ptr<const Bytes>& wire) {
    for (Connection& connection : connections_) {
      if (connection.is_open() && !is_leaving_) connection.queue(wire);
    }
  }

  void send_heartbeat() {
    sign_.moves = moves_.load(std::memory_order_relaxed);
    queue_for_all(MessageKind::heartbeat, encode_sign(sign_));
    if (place_.process == 0) watch_.hear(0, sign_, Clock::now());
  }

  /// Stops the group in all processes; the first reason is kept.
  void stop_all(const std::string& what) {
    if (stopped_) return;
    stopped_ = what;
    is_stopped_.store(true, std::memory_order_release);
    stopped_at_ = Clock::now();
    queue_for_all(MessageKind::stop, to_bytes(what));
    changed_.notify_all();
  }

  /// Returns the next data message of a process, which must be the expected one.
  Result<Bytes> take_from(int32_t process, const DataHead& expected,
                          std::unique_lock<std::mutex>& lock) {
    std::deque<Bytes>& queue = inbox_[static_cast<size_t>(process)];
    sign_.is_waiting = true;
    changed_.wait(lock, [&] { return stopped_ || !queue.empty() || watch_.has_left(process); });
    sign_.is_waiting = false;
    move();
    if (stopped_) return notice();
    if (queue.empty()) {
      return stopped_error(stop_text(watch_.last_sign(process), "it left the group too early"));
    }
    Bytes body = std::move(queue.front());
    queue.pop_front();
    const std::optional<DataHead> head = decode_data_head(body);
    if (!head || head->collective != expected.collective || head->sequence != expected.sequence) {
      stop_all(stop_text(sign_, fmt::format("it is at another collective than rank {}", process)));
      wake();
      return notice();
    }
    body.erase(body.begin(), body.begin() + kDataHeadBytes);
    return body;
  }

  // ---- the group's own thread ----

  void run(const std::stop_token& stop) {
    Clock::time_point next_heartbeat = Clock::now();
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
      if (Clock::now() >= next_heartbeat) {
        send_heartbeat();
        next_heartbeat = Clock::now() + limits_.heartbeat;
      }
      exchange();
      judge();
      // Polled without the lock, so that no other thread waits for a quiet network.
      const std::vector<PollRequest> requests = make_requests();
      const auto pause = std::chrono::ceil<milliseconds>(next_heartbeat - Clock::now());
      lock.unlock();
      wait_for_sockets(requests, pause);
      call_when_stuck();
      lock.lock();
    }
  }

  std::vector<PollRequest> make_requests() const {
    std::vector<PollRequest> requests = {{wake_, false}};
    for (const Connection& connection : connections_) {
      if (connection.is_open())
        requests.push_back({connection.descriptor(), connection.has_unsent()});
    }
    return requests;
  }

  void exchange() {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t woken = read(wake_, &count, sizeof count);
    for (Connection& connection : connections_) {
      if (!connection.is_open()) continue;
      const std::optional<bool> received = connection.receive_some();
      if (received && *received) watch_.hear_bytes(connection.process(), Clock::now());
      while (std::optional<Message> message = connection.next_message()) {
        hear(connection.process(), *std::move(message));
      }
      const bool is_alive = received && !connection.is_broken() && connection.send_queued();
      if (is_alive) continue;
      connection.close();
      // A process that said goodbye may leave.
      if (!watch_.has_left(connection.process())) watch_.lose(connection.process());
    }
    changed_.notify_all();
  }

  void hear(int32_t process, Message message) {
    switch (message.kind) {
      case MessageKind::heartbeat:
        if (const std::optional<SignOfLife> sign = decode_sign(message.body)) {
          watch_.hear(process, *sign, Clock::now());
        }
        break;
      case MessageKind::data:
        inbox_[static_cast<size_t>(process)].push_back(std::move(message.body));
        break;
      case MessageKind::stop:
        stop_all(to_string(message.body));
        break;
      case MessageKind::goodbye:
        watch_.release(process);
        break;
      case MessageKind::hello:
      case MessageKind::welcome:
      case MessageKind::refusal:
        break;  // belong to the time before joining
    }
  }

  void judge() {
    if (stopped_) return;
    std::optional<StoppedProcess> found = watch_.find_stopped(Clock::now());
    if (!found && place_.process == 0) found = watch_.find_stalled(Clock::now());
    if (found) stop_all(found->what);
  }

  void call_when_stuck() {
    {
      const std::lock_guard lock(mutex_);
      const bool is_due = stopped_ && !has_noticed_ && when_stuck_ &&
                          Clock::now() - stopped_at_ > limits_.notice_within;
      if (!is_due) return;
      has_noticed_ = true;
    }
    when_stuck_();
  }

  const LaunchPlace place_;
  const GroupLimits limits_;
  const std::function<void()> when_stuck_;

  std::atomic<int64_t> moves_ = 0;        // of the main thread
  std::atomic<bool> is_stopped_ = false;  // stopped_ has a value
  std::mutex mutex_;                      // guards everything below
  std::condition_variable changed_;
  std::vector<Connection> connections_;
  GroupWatch watch_;
  SignOfLife sign_;
  std::vector<std::deque<Bytes>> inbox_;  // [process] data messages
  int64_t next_sequence_ = 0;
  std::optional<std::string> stopped_;
  Clock::time_point stopped_at_;
  bool has_noticed_ = false;
  bool is_leaving_ = false;
  const int wake_;
  std::jthread thread_;
};

Result<std::unique_ptr<ProcessGroup>> ProcessGroup::join(const LaunchPlace& place,
                                                         const GroupLimits& limits,
                                                         std::function<void()> when_stuck) {
  std::vector<Connection> connections;
  if (place.num_processes > 1) {
    Result<std::vector<Connection>> joined = place.process == 0
                                                 ? gather_processes(place, limits.join_within)
                                                 : reach_first_process(place, limits.join_within);
    if (!joined) return joined.error();
    connections = std::move(joined).value();
  }
  return std::unique_ptr<ProcessGroup>(new ProcessGroup(
      std::make_unique<State>(place, limits, std::move(when_stuck), std::move(connections))));
}

ProcessGroup::ProcessGroup(std::unique_ptr<State> state) : state_(std::move(state)) {}
ProcessGroup::~ProcessGroup() = default;

int32_t ProcessGroup::process() const { return state_->place().process; }
int32_t ProcessGroup::num_processes() const { return state_->place().num_processes; }
void ProcessGroup::set_name(const std::string& name) { state_->set_name(name); }
void ProcessGroup::publish(WorkPoint point) { state_->publish(point); }
void ProcessGroup::move() { state_->move(); }
Result<Bytes> ProcessGroup::broadcast(Bytes bytes) { return state_->broadcast(std::move(bytes)); }
Result<std::vector<Bytes>> ProcessGroup::gather(Bytes bytes) {
  return state_->gather(std::move(bytes));
}
void ProcessGroup::fail(const std::string& why) { state_->fail(why); }
std::optional<std::string> ProcessGroup::why_stopped() { return state_->why_stopped(); }

Result<bool> ProcessGroup::barrier() {
  Result<std::vector<Bytes>> here = gather({});
  if (!here) return here.error();
  const Result<Bytes> released = broadcast({});
  if (!released) return released.error();
  return true;
}

}  // namespace cpscope::kernels
