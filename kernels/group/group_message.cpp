#include "kernels/group/group_message.h"

#include "kernels/group/byte_stream.h"

#include <array>
#include <utility>

namespace cpscope::kernels {

namespace {

constexpr std::array<uint8_t, 4> kMagic = {'c', 'p', 's', 'g'};
constexpr size_t kHeaderBytes = 16;

}  // namespace

Bytes to_bytes(const std::string& text) { return {text.begin(), text.end()}; }

std::string to_string(std::span<const uint8_t> bytes) { return {bytes.begin(), bytes.end()}; }

Bytes frame_message(MessageKind kind, std::span<const uint8_t> body) {
  Bytes wire(kMagic.begin(), kMagic.end());
  wire.reserve(kHeaderBytes + body.size());
  wire.push_back(static_cast<uint8_t>(kind));
  wire.insert(wire.end(), 3, 0);
  put<uint64_t>(wire, body.size());
  wire.insert(wire.end(), body.begin(), body.end());
  return wire;
}

Bytes encode_hello(const Hello& hello) {
  Bytes body;
  put(body, hello.process);
  put(body, hello.num_processes);
  body.insert(body.end(), hello.job.begin(), hello.job.end());
  return body;
}

std::optional<Hello> decode_hello(std::span<const uint8_t> body) {
  ByteReader reader(body);
  Hello hello;
  hello.process = reader.take<int32_t>();
  hello.num_processes = reader.take<int32_t>();
  hello.job = reader.rest();
  if (reader.is_short()) return std::nullopt;
  return hello;
}

Bytes encode_sign(const SignOfLife& sign) {
  Bytes body;
  put(body, sign.point.run);
  put(body, static_cast<uint8_t>(sign.point.activity));
  put(body, sign.point.step);
  put(body, sign.moves);
  put(body, static_cast<uint8_t>(sign.is_waiting));
  body.insert(body.end(), sign.name.begin(), sign.name.end());
  return body;
}

std::optional<SignOfLife> decode_sign(std::span<const uint8_t> body) {
  ByteReader reader(body);
  SignOfLife sign;
  sign.point.run = reader.take<int64_t>();
  const uint8_t activity = reader.take<uint8_t>();
  sign.point.activity = static_cast<Activity>(activity);
  sign.point.step = reader.take<int32_t>();
  sign.moves = reader.take<int64_t>();
  sign.is_waiting = reader.take<uint8_t>() != 0;
  sign.name = reader.rest();
  if (reader.is_short() || activity > static_cast<uint8_t>(Activity::finishing)) {
    return std::nullopt;
  }
  return sign;
}

Bytes encode_data(const DataHead& head, std::span<const uint8_t> payload) {
  Bytes body;
  body.reserve(kDataHeadBytes + payload.size());
  put(body, static_cast<uint8_t>(head.collective));
  put(body, head.sequence);
  body.insert(body.end(), payload.begin(), payload.end());
  return body;
}

std::optional<DataHead> decode_data_head(std::span<const uint8_t> body) {
  ByteReader reader(body);
  DataHead head;
  head.collective = static_cast<Collective>(reader.take<uint8_t>());
  head.sequence = reader.take<int64_t>();
  if (reader.is_short()) return std::nullopt;
  return head;
}

void MessageReader::append(std::span<const uint8_t> bytes) {
  if (is_broken_) return;
  pending_.insert(pending_.end(), bytes.begin(), bytes.end());
}

std::optional<Message> MessageReader::next() {
  const std::span<const uint8_t> rest = std::span(pending_).subspan(taken_);
  // Untrusted connections are recognised by their first bytes, before a header is complete.
  const size_t known = std::min(rest.size(), kMagic.size());
  if (is_broken_ || !std::equal(rest.begin(), rest.begin() + known, kMagic.begin())) {
    is_broken_ = true;
    return std::nullopt;
  }
  if (rest.size() < kHeaderBytes) return std::nullopt;
  ByteReader reader(rest.subspan(kMagic.size()));
  const uint8_t kind = reader.take<uint8_t>();
  for (int i = 0; i < 3; ++i) reader.take<uint8_t>();
  const uint64_t length = reader.take<uint64_t>();
  if (kind > static_cast<uint8_t>(MessageKind::goodbye) || length > max_body_) {
    is_broken_ = true;
    return std::nullopt;
  }
  if (rest.size() - kHeaderBytes < length) {
    if (taken_ > 0) pending_.erase(pending_.begin(), pending_.begin() + std::exchange(taken_, 0));
    pending_.reserve(kHeaderBytes + length);
    return std::nullopt;
  }
  const std::span<const uint8_t> body = rest.subspan(kHeaderBytes, length);
  Message message{.kind = static_cast<MessageKind>(kind), .body = {body.begin(), body.end()}};
  taken_ += kHeaderBytes + length;
  if (taken_ == pending_.size()) {
    pending_ = {};
    taken_ = 0;
  }
  return message;
}

}  // namespace cpscope::kernels
