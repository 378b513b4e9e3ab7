#include "tests/support/animation_reader.h"

#include <stdexcept>
#include <string_view>

#include <zlib.h>

namespace cpscope::tests {
namespace {

void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

uint32_t number(std::string_view bytes, size_t at, size_t size = 4) {
  require(at + size <= bytes.size(), "a chunk is too short");
  uint32_t value = 0;
  for (size_t i = 0; i < size; ++i) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

/// Draws the packed pixels of a frame over what is shown, or in its place.
void draw_over(gui::Image& shown, const ShownFrame& frame, const std::string& packed, bool over) {
  const size_t row = 1 + 4 * static_cast<size_t>(frame.width);
  std::string pixels(row * static_cast<size_t>(frame.height), '\0');
  uLongf size = pixels.size();
  require(uncompress(reinterpret_cast<Bytef*>(pixels.data()), &size,
                     reinterpret_cast<const Bytef*>(packed.data()), packed.size()) == Z_OK &&
              size == pixels.size(),
          "the pixels of a frame cannot be unpacked");
  for (int32_t y = 0; y < frame.height; ++y) {
    const char* line = pixels.data() + row * static_cast<size_t>(y);
    require(*line == 0, "a row filter");
    for (int32_t x = 0; x < frame.width; ++x) {
      const auto* at = reinterpret_cast<const uint8_t*>(line + 1 + 4 * x);
      if (over && at[3] == 0) continue;
      require(!over || at[3] == 255, "a half transparent pixel");
      shown.at(frame.x + x, frame.y + y) = {at[0], at[1], at[2], at[3]};
    }
  }
}

}  // namespace

std::vector<PngChunk> read_chunks(const std::string& bytes) {
  require(bytes.substr(0, 8) == "\x89PNG\r\n\x1a\n", "no PNG file");
  std::vector<PngChunk> chunks;
  for (size_t at = 8; at < bytes.size();) {
    const size_t size = number(bytes, at);
    require(at + 12 + size <= bytes.size(), "the file ends inside a chunk");
    const std::string named = bytes.substr(at + 4, 4 + size);
    const uLong sum =
        crc32(0, reinterpret_cast<const Bytef*>(named.data()), static_cast<uInt>(named.size()));
    require(number(bytes, at + 8 + size) == sum, "a wrong checksum of " + named.substr(0, 4));
    chunks.push_back({named.substr(0, 4), named.substr(4)});
    at += 12 + size;
  }
  return chunks;
}

std::vector<ShownFrame> play_animation(const std::string& bytes) {
  const std::vector<PngChunk> chunks = read_chunks(bytes);
  require(!chunks.empty() && chunks.front().name == "IHDR" && chunks.back().name == "IEND",
          "no IHDR first or no IEND last");
  const std::string& header = chunks.front().data;
  require(header[8] == 8 && header[9] == 6, "not RGBA of 8 bits");
  std::vector<ShownFrame> frames;
  std::vector<bool> are_over;
  std::vector<std::string> packed;
  uint32_t sequence = 0, promised = 0;
  for (const PngChunk& chunk : chunks) {
    if (chunk.name == "acTL") promised = number(chunk.data, 0);
    if (chunk.name == "fcTL") {
      require(number(chunk.data, 0) == sequence++, "a wrong sequence number");
      require(number(chunk.data, 22, 2) == 1000, "a duration that is not in milliseconds");
      require(chunk.data[24] == 0, "a frame that is taken away");
      ShownFrame frame;
      frame.width = static_cast<int32_t>(number(chunk.data, 4));
      frame.height = static_cast<int32_t>(number(chunk.data, 8));
      frame.x = static_cast<int32_t>(number(chunk.data, 12));
      frame.y = static_cast<int32_t>(number(chunk.data, 16));
      frame.duration_ms = static_cast<int32_t>(number(chunk.data, 20, 2));
      frames.push_back(std::move(frame));
      are_over.push_back(chunk.data[25] == 1);
      packed.emplace_back();
    }
    if (chunk.name == "IDAT") {
      require(frames.size() == 1, "the first frame is not the picture of the file");
      packed.back() += chunk.data;
    }
    if (chunk.name == "fdAT") {
      require(number(chunk.data, 0) == sequence++, "a wrong sequence number");
      packed.back() += chunk.data.substr(4);
    }
  }
  require(promised == frames.size(), "acTL counts other frames");
  gui::Image shown(static_cast<int32_t>(number(header, 0)),
                   static_cast<int32_t>(number(header, 4)));
  for (size_t n = 0; n < frames.size(); ++n) {
    const ShownFrame& frame = frames[n];
    require(frame.x + frame.width <= shown.width && frame.y + frame.height <= shown.height,
            "a frame outside of the picture");
    draw_over(shown, frame, packed[n], are_over[n]);
    frames[n].image = shown;
  }
  return frames;
}

}  // namespace cpscope::tests
