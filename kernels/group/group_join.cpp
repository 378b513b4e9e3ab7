#include "kernels/group/group_join.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cpscope::kernels {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

namespace {

// Longest message from a connection that has not identified itself.
constexpr uint64_t kMaxHello = 4096;
constexpr milliseconds kFirstPause{20};
constexpr milliseconds kLongestPause{500};

milliseconds time_left(Clock::time_point deadline) {
  return std::max(milliseconds{0}, std::chrono::ceil<milliseconds>(deadline - Clock::now()));
}

std::shared_ptr<const Bytes> frame(MessageKind kind, const Bytes& body) {
  return std::make_shared<const Bytes>(frame_message(kind, body));
}

/// Sends all queued bytes, until the deadline at most.
void flush(Connection& connection, Clock::time_point deadline) {
  while (connection.has_unsent() && connection.send_queued() && connection.has_unsent() &&
         time_left(deadline) > milliseconds{0}) {
    const PollRequest request{.descriptor = connection.descriptor(), .wants_to_write = true};
    wait_for_sockets({&request, 1}, time_left(deadline));
  }
}

/// Accepts and checks connections in process 0.
class Door {
 public:
  explicit Door(const LaunchPlace& place)
      : place_(place), joined_(static_cast<size_t>(place.num_processes - 1)) {}

  Result<std::vector<Connection>> wait(std::vector<Socket> listeners, milliseconds within) {
    const Clock::time_point deadline = Clock::now() + within;
    while (num_joined_ < joined_.size()) {
      if (time_left(deadline) == milliseconds{0}) return complain_late(within);
      std::vector<PollRequest> requests;
      for (const Socket& listener : listeners) requests.push_back({listener.descriptor(), false});
      for (const Connection& guest : guests_) requests.push_back({guest.descriptor(), false});
      for (const auto& member : joined_) {
        requests.push_back({member ? member->descriptor() : -1, false});
      }
      wait_for_sockets(requests, time_left(deadline));
      for (const Socket& listener : listeners) {
        if (Socket socket = accept_one(listener); socket.is_open()) {
          guests_.emplace_back(std::move(socket), -1, kMaxHello);
        }
      }
      for (Connection& guest : guests_) hear_guest(guest);
      std::erase_if(guests_, [](const Connection& guest) { return !guest.is_open(); });
      if (std::optional<Error> error = find_lost()) return *std::move(error);
    }
    std::vector<Connection> connections;
    for (auto& member : joined_) {
      member->queue(frame(MessageKind::welcome, {}));
      flush(*member, deadline);
      connections.push_back(*std::move(member));
    }
    return connections;
  }

 private:
  void hear_guest(Connection& guest) {
    const std::optional<bool> received = guest.receive_some();
    const std::optional<Message> message = guest.next_message();
    if (!message) {
      if (!received || guest.is_broken()) guest.close();
      return;
    }
    const std::optional<Hello> hello =
        message->kind == MessageKind::hello ? decode_hello(message->body) : std::nullopt;
    if (!hello) return guest.close();
    const std::string why_not = why_refused(*hello);
    if (why_not.empty()) {
      guest.accept_as(hello->process, kMaxBody);
      joined_[static_cast<size_t>(hello->process - 1)].emplace(std::move(guest));
      ++num_joined_;
      return;
    }
    refused_.push_back(why_not);
    guest.queue(frame(MessageKind::refusal, to_bytes(why_not)));
    flush(guest, Clock::now() + milliseconds{200});
    guest.close();
  }

  std::string why_refused(const Hello& hello) const {
    if (hello.job != place_.job) {
      return fmt::format("process {} belongs to another job: \"{}\", here \"{}\"", hello.process,
                         hello.job, place_.job);
    }
    if (hello.num_processes != place_.num_processes) {
      return fmt::format("process {} counts {} processes, process 0 counts {}", hello.process,
                         hello.num_processes, place_.num_processes);
    }
    if (hello.process < 1 || hello.process >= place_.num_processes) {
      return fmt::format("there is no process {} among {}", hello.process, place_.num_processes);
    }
    if (joined_[static_cast<size_t>(hello.process - 1)]) {
      return fmt::format("process {} is here already; does a second group use port {}?",
                         hello.process, place_.port);
    }
    return "";
  }

  /// Processes that have joined send nothing yet; if something arrives, their connection has ended.
  std::optional<Error> find_lost() {
    for (auto& member : joined_) {
      if (!member || member->receive_some()) continue;
      return make_error(
          ErrorKind::unavailable,
          fmt::format("process {} ended while the group was forming", member->process()),
          "its own message says why");
    }
    return std::nullopt;
  }

  Error complain_late(milliseconds within) const {
    std::vector<size_t> missing;
    for (size_t i = 0; i < joined_.size(); ++i) {
      if (!joined_[i]) missing.push_back(i + 1);
    }
    std::string what =
        fmt::format("not all {} processes came to port {} of {} within {:.3g} s: {} missing",
                    place_.num_processes, place_.port, place_.host,
                    std::chrono::duration<double>(within).count(), fmt::join(missing, ", "));
    if (!refused_.empty()) what += fmt::format("; turned away: {}", refused_.back());
    return make_error(ErrorKind::unavailable, std::move(what),
                      "start all of them, with the same MASTER_ADDR and MASTER_PORT");
  }

  const LaunchPlace& place_;
  std::vector<Connection> guests_;  // have not identified themselves yet
  std::vector<std::optional<Connection>> joined_;
  size_t num_joined_ = 0;
  std::vector<std::string> refused_;
};

/// One attempt to join: a connection, a final rejection, or a reason to try again.
struct Try {
  std::optional<Connection> connection;
  std::string refusal;
  std::string why_not;
};

Try try_to_join(const LaunchPlace& place, Clock::time_point deadline) {
  Try result;
  Attempt attempt = connect_once(place.host, place.port, time_left(deadline));
  if (!attempt.socket.is_open()) {
    result.why_not = attempt.why_not;
    return result;
  }
  Connection connection(std::move(attempt.socket), 0, kMaxBody);
  connection.queue(frame(MessageKind::hello, encode_hello({.process = place.process,
                                                           .num_processes = place.num_processes,
                                                           .job = place.job})));
  flush(connection, deadline);
  while (time_left(deadline) > milliseconds{0}) {
    const PollRequest request{.descriptor = connection.descriptor(), .wants_to_write = false};
    wait_for_sockets({&request, 1}, time_left(deadline));
    const std::optional<bool> received = connection.receive_some();
    if (const std::optional<Message> message = connection.next_message()) {
      if (message->kind == MessageKind::welcome) {
        result.connection.emplace(std::move(connection));
      } else {
        result.refusal = message->kind == MessageKind::refusal ? to_string(message->body)
                                                               : "an answer that has no meaning";
      }
      return result;
    }
    if (connection.is_broken()) {
      result.refusal = "what listens there is no process of cpscope";
      return result;
    }
    if (!received) {
      result.why_not = "process 0 closed the connection";
      return result;
    }
  }
  result.why_not = "process 0 still waits for others";
  return result;
}

}  // namespace

void Connection::accept_as(int32_t process, uint64_t max_body) {
  process_ = process;
  reader_.set_max_body(max_body);
}

bool Connection::send_queued() {
  while (!outgoing_.empty()) {
    const Bytes& wire = *outgoing_.front();
    const std::optional<size_t> sent = socket_.send_some(std::span(wire).subspan(sent_));
    if (!sent) return false;
    if (*sent == 0) return true;
    sent_ += *sent;
    if (sent_ < wire.size()) continue;
    outgoing_.pop_front();
    sent_ = 0;
  }
  return true;
}

std::optional<bool> Connection::receive_some() {
  std::array<uint8_t, 65'536> part;
  bool has_any = false;
  // Bounded, so that one busy sender does not delay the others.
  for (int i = 0; i < 8; ++i) {
    const std::optional<size_t> received = socket_.receive_some(part);
    if (!received) return has_any ? std::optional(true) : std::nullopt;
    if (*received == 0) break;
    has_any = true;
    reader_.append(std::span(part).first(*received));
  }
  return has_any;
}

Result<std::vector<Connection>> gather_processes(const LaunchPlace& place, milliseconds within) {
  Result<std::vector<Socket>> listeners = listen_at(place.host, place.port);
  if (!listeners) return listeners.error();
  return Door(place).wait(std::move(listeners).value(), within);
}

Result<std::vector<Connection>> reach_first_process(const LaunchPlace& place, milliseconds within) {
  const Clock::time_point deadline = Clock::now() + within;
  milliseconds pause = kFirstPause;
  std::string why_not;
  while (true) {
    Try attempt = try_to_join(place, deadline);
    if (attempt.connection) {
      std::vector<Connection> connections;
      connections.push_back(*std::move(attempt.connection));
      return connections;
    }
    if (!attempt.refusal.empty()) {
      return make_error(ErrorKind::unavailable,
                        fmt::format("process {} cannot join the group at port {} of {}: {}",
                                    place.process, place.port, place.host, attempt.refusal),
                        "set MASTER_PORT to an unused port");
    }
    why_not = attempt.why_not;
    if (time_left(deadline) == milliseconds{0}) break;
    // Process 0 may start later, and no event reports it.
    wait_for_sockets({}, std::min(pause, time_left(deadline)));
    pause = std::min(2 * pause, kLongestPause);
  }
  return make_error(ErrorKind::unavailable,
                    fmt::format("process {} did not reach process 0 at port {} of {} within {:.3g} "
                                "s: {}",
                                place.process, place.port, place.host,
                                std::chrono::duration<double>(within).count(), why_not),
                    "is process 0 running there, and is the port open?");
}

}  // namespace cpscope::kernels
