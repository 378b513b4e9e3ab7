#include "kernels/group/tcp_socket.h"

#include <algorithm>
#include <cerrno>
#include <memory>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace cpscope::kernels {

namespace {

std::string describe_errno(int code) { return std::generic_category().message(code); }

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

/// Addresses of a host; `why_not` is the reason if there is none.
Addresses resolve(const char* host, int32_t port, int flags, std::string& why_not) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(host, std::to_string(port).c_str(), &hints, &found);
  if (code != 0) why_not = fmt::format("{}: {}", host == nullptr ? "*" : host, gai_strerror(code));
  return {code == 0 ? found : nullptr, [](addrinfo* list) {
            if (list != nullptr) freeaddrinfo(list);
          }};
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

Socket make_socket(const addrinfo& address) {
  return Socket(socket(address.ai_family, address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC,
                       address.ai_protocol));
}

void set_option(const Socket& socket, int level, int name, int value) {
  setsockopt(socket.descriptor(), level, name, &value, sizeof value);
}

}  // namespace

Socket::Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this == &other) return *this;
  close();
  descriptor_ = std::exchange(other.descriptor_, -1);
  return *this;
}

void Socket::close() noexcept {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

void Socket::end_sending() noexcept {
  if (descriptor_ >= 0) shutdown(descriptor_, SHUT_WR);
}

std::optional<size_t> Socket::send_some(std::span<const uint8_t> bytes) {
  const ssize_t sent = send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (sent >= 0) return static_cast<size_t>(sent);
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return 0;
  return std::nullopt;
}

std::optional<size_t> Socket::receive_some(std::span<uint8_t> room) {
  const ssize_t received = recv(descriptor_, room.data(), room.size(), 0);
  if (received > 0) return static_cast<size_t>(received);
  if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return 0;
  return std::nullopt;
}

Result<std::vector<Socket>> listen_at(const std::string& host, int32_t port) {
  std::string why_not;
  const bool is_local = is_loopback(host);
  const Addresses addresses = resolve(is_local ? host.c_str() : nullptr, port, AI_PASSIVE, why_not);
  std::vector<Socket> listeners;
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
    Socket socket = make_socket(*at);
    if (!socket.is_open()) continue;  // a host without IPv6
    set_option(socket, SOL_SOCKET, SO_REUSEADDR, 1);
    // IPv4 has a separate listener.
    if (at->ai_family == AF_INET6) set_option(socket, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    if (bind(socket.descriptor(), at->ai_addr, at->ai_addrlen) == 0 &&
        listen(socket.descriptor(), SOMAXCONN) == 0) {
      listeners.push_back(std::move(socket));
      continue;
    }
    why_not = describe_errno(errno);
    // With only one of the two address families, a second group could share the port.
    if (errno == EADDRINUSE)
      return make_error(ErrorKind::unavailable, fmt::format("port {} of {} is in use", port, host),
                        "set MASTER_PORT to a free port");
  }
  if (!listeners.empty()) return listeners;
  return make_error(ErrorKind::unavailable,
                    fmt::format("cannot listen at port {} of {}: {}", port, host, why_not),
                    "set MASTER_ADDR to the host of process 0 and MASTER_PORT to a free port");
}

Socket accept_one(const Socket& listener) {
  Socket socket(accept4(listener.descriptor(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket.is_open()) set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  return socket;
}

Attempt connect_once(const std::string& host, int32_t port, std::chrono::milliseconds within) {
  Attempt attempt;
  const Addresses addresses = resolve(host.c_str(), port, 0, attempt.why_not);
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
    Socket socket = make_socket(*at);
    if (!socket.is_open()) continue;
    set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
    int code = connect(socket.descriptor(), at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
    if (code == EINPROGRESS) {
      const PollRequest request{.descriptor = socket.descriptor(), .wants_to_write = true};
      code = ETIMEDOUT;
      if (wait_for_sockets({&request, 1}, within)[0]) {
        socklen_t size = sizeof code;
        getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &code, &size);
      }
    }
    if (code == 0) return {.socket = std::move(socket), .why_not = {}};
    attempt.why_not = describe_errno(code);
  }
  return attempt;
}

std::vector<bool> wait_for_sockets(std::span<const PollRequest> requests,
                                   std::chrono::milliseconds within) {
  std::vector<pollfd> polled;
  for (const PollRequest& request : requests) {
    const int events = POLLIN | (request.wants_to_write ? POLLOUT : 0);
    polled.push_back({request.descriptor, static_cast<short>(events), 0});
  }
  const auto limit = std::clamp<int64_t>(within.count(), 0, 3'600'000);
  const int count = poll(polled.data(), polled.size(), static_cast<int>(limit));
  std::vector<bool> ready(requests.size(), false);
  for (size_t i = 0; count > 0 && i < polled.size(); ++i) ready[i] = polled[i].revents != 0;
  return ready;
}

}  // namespace cpscope::kernels
