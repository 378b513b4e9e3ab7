#pragma once

#include "sim/base/result.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace cpscope::kernels {

using Bytes = std::vector<uint8_t>;

/// A socket that the destructor closes. Calls never block.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;
  ~Socket() { close(); }

  bool is_open() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  void close() noexcept;
  void end_sending() noexcept;

  /// Number of bytes sent or received: 0 if none is possible now, nothing if the connection is
  /// gone.
  std::optional<size_t> send_some(std::span<const uint8_t> bytes);
  std::optional<size_t> receive_some(std::span<uint8_t> room);

 private:
  int descriptor_ = -1;
};

/// Listens on all addresses of this host, or only on the loopback if `host` is one.
/// Errors: unavailable, e.g. another process listens there.
Result<std::vector<Socket>> listen_at(const std::string& host, int32_t port);

/// A connection that is waiting, if any.
Socket accept_one(const Socket& listener);

/// A connection, or the reason why there is none yet.
struct Attempt {
  Socket socket;
  std::string why_not;
};

/// Tries every address of `host` once.
Attempt connect_once(const std::string& host, int32_t port, std::chrono::milliseconds within);

/// Sleeps until one of the descriptors can be read (or written, if requested) or the time is over;
/// [i] is true if descriptor i is ready.
struct PollRequest {
  int descriptor = -1;
  bool wants_to_write = false;
};
std::vector<bool> wait_for_sockets(std::span<const PollRequest> requests,
                                   std::chrono::milliseconds within);

}  // namespace cpscope::kernels
