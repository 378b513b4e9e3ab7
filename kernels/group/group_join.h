#pragma once

#include "kernels/group/group_message.h"
#include "kernels/group/launch_place.h"
#include "kernels/group/tcp_socket.h"
#include "sim/base/result.h"

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

namespace cpscope::kernels {

/// Messages to and from one other process.
class Connection {
 public:
  Connection(Socket socket, int32_t process, uint64_t max_body)
      : socket_(std::move(socket)), process_(process), reader_(max_body) {}

  bool is_open() const { return socket_.is_open(); }
  int descriptor() const { return socket_.descriptor(); }
  void close() { socket_.close(); }
  /// Ends sending: the other side reads to the end and then finds the connection closed.
  void end_sending() { socket_.end_sending(); }
  int32_t process() const { return process_; }
  void accept_as(int32_t process, uint64_t max_body);

  void queue(std::shared_ptr<const Bytes> wire) { outgoing_.push_back(std::move(wire)); }
  bool has_unsent() const { return !outgoing_.empty(); }
  /// Sends what can be sent now. False: the connection is gone.
  bool send_queued();
  /// Receives what has arrived, up to a few hundred KiB. nullopt: the connection is gone; else
  /// whether anything arrived.
  std::optional<bool> receive_some();
  std::optional<Message> next_message() { return reader_.next(); }
  bool is_broken() const { return reader_.is_broken(); }

 private:
  Socket socket_;
  int32_t process_;
  MessageReader reader_;
  std::deque<std::shared_ptr<const Bytes>> outgoing_;
  size_t sent_ = 0;  // bytes of the first of outgoing_
};

/// Longest message of a member of the group.
inline constexpr uint64_t kMaxBody = uint64_t{1} << 36;

/// In process 0: waits until all other processes have joined. Unknown connections, processes of
/// other groups and those with another process count are rejected and do not disturb the group.
/// [i]: connection to process i + 1. Errors: unavailable: the port is in use, or processes did not
/// join in time (they are named).
Result<std::vector<Connection>> gather_processes(const LaunchPlace& place,
                                                 std::chrono::milliseconds within);

/// In the other processes: connects to process 0. Tries again until process 0 listens.
/// Errors: unavailable: process 0 did not listen in time, or rejected this process (with the
/// reason).
Result<std::vector<Connection>> reach_first_process(const LaunchPlace& place,
                                                    std::chrono::milliseconds within);

}  // namespace cpscope::kernels
