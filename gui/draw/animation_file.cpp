#include "gui/draw/animation_file.h"

#include "sim/base/check.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

namespace cpscope::gui {
namespace {

constexpr size_t kSignature = 8;  // bytes before the first chunk of a PNG file
constexpr size_t kFrame = 12;     // bytes of a chunk besides its data: length, name, checksum

/// The checksum of PNG's chunks (CRC-32 of ISO 3309).
uint32_t checksum(std::string_view bytes) {
  static constexpr auto kTable = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t n = 0; n < table.size(); ++n) {
      uint32_t value = n;
      for (int bit = 0; bit < 8; ++bit)
        value = (value & 1) != 0 ? 0xEDB88320U ^ (value >> 1) : value >> 1;
      table[n] = value;
    }
    return table;
  }();
  uint32_t sum = 0xFFFFFFFFU;
  for (const char letter : bytes)
    sum = kTable[(sum ^ static_cast<uint8_t>(letter)) & 255U] ^ (sum >> 8);
  return ~sum;
}

void append_number(std::string& bytes, uint32_t value, int32_t size) {
  for (int32_t shift = 8 * (size - 1); shift >= 0; shift -= 8)
    bytes += static_cast<char>((value >> shift) & 255U);
}

uint32_t number_at(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

void append_chunk(std::string& bytes, std::string_view name, std::string_view data) {
  append_number(bytes, static_cast<uint32_t>(data.size()), 4);
  std::string named(name);
  named += data;
  bytes += named;
  append_number(bytes, checksum(named), 4);
}

struct Chunk {
  std::string_view name, data, whole;
};

/// The chunks of a PNG file that this program wrote.
std::vector<Chunk> split_chunks(std::string_view bytes) {
  std::vector<Chunk> chunks;
  for (size_t at = kSignature; at + kFrame <= bytes.size();) {
    const size_t size = number_at(bytes, at);
    chunks.push_back(
        {bytes.substr(at + 4, 4), bytes.substr(at + 8, size), bytes.substr(at, size + kFrame)});
    at += size + kFrame;
  }
  return chunks;
}

/// The pixels of a picture as they are packed in a PNG file with alpha.
Result<std::string> pack_pixels(const Image& image) {
  const Result<std::string> file = write_png_text(image, {}, true);
  if (!file) return file.error();
  std::string data;
  for (const Chunk& chunk : split_chunks(file.value()))
    if (chunk.name == "IDAT") data += chunk.data;
  return data;
}

/// The rectangle in which two pictures of one size differ; empty (x1 = 0) where they do not.
struct Changed {
  int32_t x0 = 0, y0 = 0, x1 = 0, y1 = 0;
};

Changed find_changed(const Image& before, const Image& after) {
  Changed box{after.width, after.height, 0, 0};
  for (int32_t y = 0; y < after.height; ++y) {
    for (int32_t x = 0; x < after.width; ++x) {
      if (before.at(x, y) == after.at(x, y)) continue;
      box = {std::min(box.x0, x), std::min(box.y0, y), std::max(box.x1, x + 1),
             std::max(box.y1, y + 1)};
    }
  }
  return box;
}

/// What changed inside the rectangle; everything else is transparent.
Image cut_changes(const Image& before, const Image& after, const Changed& box) {
  Image cut(box.x1 - box.x0, box.y1 - box.y0);
  for (int32_t y = 0; y < cut.height; ++y) {
    for (int32_t x = 0; x < cut.width; ++x) {
      const Color color = after.at(box.x0 + x, box.y0 + y);
      const bool is_same = color == before.at(box.x0 + x, box.y0 + y);
      cut.at(x, y) = is_same ? Color{0, 0, 0, 0} : color;
    }
  }
  return cut;
}

}  // namespace

std::optional<Error> AnimationWriter::add(const Image& frame, int32_t duration_ms) {
  CPSCOPE_CHECK(duration_ms > 0 && duration_ms <= kLongest, "no duration of a frame", duration_ms,
                kLongest);
  CPSCOPE_CHECK(std::all_of(frame.pixels.begin(), frame.pixels.end(),
                            [](Color color) { return color.a == 255; }),
                "a frame that is not opaque", frame.width, frame.height);
  if (frames_.empty()) {
    first_ = frame;
    last_ = frame;
    frames_.push_back({0, 0, frame.width, frame.height, duration_ms, ""});
    return std::nullopt;
  }
  CPSCOPE_CHECK(frame.width == last_.width && frame.height == last_.height,
                "frames of different sizes", frame.width, last_.width);
  const Changed box = find_changed(last_, frame);
  if (box.x1 == 0) {
    frames_.back().duration_ms = std::min(kLongest, frames_.back().duration_ms + duration_ms);
    return std::nullopt;
  }
  Result<std::string> packed = pack_pixels(cut_changes(last_, frame, box));
  if (!packed) return packed.error();
  frames_.push_back(
      {box.x0, box.y0, box.x1 - box.x0, box.y1 - box.y0, duration_ms, std::move(packed).value()});
  last_ = frame;
  return std::nullopt;
}

int64_t AnimationWriter::duration_ms() const {
  int64_t sum = 0;
  for (const Frame& frame : frames_) sum += frame.duration_ms;
  return sum;
}

Result<std::string> AnimationWriter::finish(const std::vector<PngText>& texts) const {
  CPSCOPE_CHECK(!frames_.empty(), "an animation without frames", frames_.size(), size_t{1});
  const Result<std::string> still = write_png_text(first_, texts, true);
  if (!still) return still.error();
  uint32_t sequence = 0;  // of all chunks that control or hold frames
  const auto control_of = [&sequence](const Frame& frame) {
    constexpr uint32_t kKeep = 0, kReplace = 0, kOver = 1;
    std::string data;
    append_number(data, sequence++, 4);
    for (const int32_t value : {frame.width, frame.height, frame.x, frame.y})
      append_number(data, static_cast<uint32_t>(value), 4);
    append_number(data, static_cast<uint32_t>(frame.duration_ms), 2);
    append_number(data, 1000, 2);
    append_number(data, kKeep, 1);
    append_number(data, frame.packed.empty() ? kReplace : kOver, 1);
    return data;
  };
  std::string bytes = still.value().substr(0, kSignature);
  for (const Chunk& chunk : split_chunks(still.value())) {
    // The first frame is the picture itself: its control stands before its pixels.
    if (chunk.name == "IDAT" && sequence == 0) append_chunk(bytes, "fcTL", control_of(frames_[0]));
    if (chunk.name == "IEND") {
      for (size_t n = 1; n < frames_.size(); ++n) {
        append_chunk(bytes, "fcTL", control_of(frames_[n]));
        std::string data;
        append_number(data, sequence++, 4);
        append_chunk(bytes, "fdAT", data + frames_[n].packed);
      }
    }
    bytes += chunk.whole;
    if (chunk.name != "IHDR") continue;
    std::string data;
    append_number(data, static_cast<uint32_t>(frames_.size()), 4);
    append_number(data, 0, 4);  // plays without end
    append_chunk(bytes, "acTL", data);
  }
  return bytes;
}

}  // namespace cpscope::gui
