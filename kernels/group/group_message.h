#pragma once

#include "kernels/group/group_watch.h"
#include "kernels/group/tcp_socket.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace cpscope::kernels {

/// Kinds of messages between the processes of a group.
enum class MessageKind : uint8_t { hello, welcome, refusal, heartbeat, data, stop, goodbye };

struct Message {
  MessageKind kind{};
  Bytes body;
};

/// First message of a process that wants to join.
struct Hello {
  int32_t process = 0;
  int32_t num_processes = 0;
  std::string job;
};

/// Part of a collective: all processes must enter the same ones in the same order.
enum class Collective : uint8_t { broadcast, gather };

struct DataHead {
  Collective collective{};
  int64_t sequence = 0;
};

/// Encodes header and body: 4 bytes "cpsg", the kind, 3 zero bytes, 8 bytes length, the body.
Bytes frame_message(MessageKind kind, std::span<const uint8_t> body);

Bytes encode_hello(const Hello& hello);
std::optional<Hello> decode_hello(std::span<const uint8_t> body);
Bytes encode_sign(const SignOfLife& sign);
std::optional<SignOfLife> decode_sign(std::span<const uint8_t> body);
/// Encodes a data message; the payload follows the head.
Bytes encode_data(const DataHead& head, std::span<const uint8_t> payload);
std::optional<DataHead> decode_data_head(std::span<const uint8_t> body);
inline constexpr size_t kDataHeadBytes = 9;

Bytes to_bytes(const std::string& text);
std::string to_string(std::span<const uint8_t> bytes);

/// Splits received bytes into messages.
class MessageReader {
 public:
  /// `max_body`: limit of a message's length. Longer messages, and bytes that are no message, break
  /// the reader.
  explicit MessageReader(uint64_t max_body) : max_body_(max_body) {}

  void set_max_body(uint64_t max_body) { max_body_ = max_body; }
  void append(std::span<const uint8_t> bytes);
  /// The next complete message, if there is one.
  std::optional<Message> next();
  /// True if the received bytes are no messages of this protocol.
  bool is_broken() const { return is_broken_; }

 private:
  uint64_t max_body_;
  bool is_broken_ = false;
  Bytes pending_;
  size_t taken_ = 0;  // bytes of pending_ that were already returned
};

}  // namespace cpscope::kernels
