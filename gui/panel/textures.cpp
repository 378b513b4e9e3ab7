#include "gui/panel/textures.h"

#include "sim/base/check.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace cpscope::gui {

namespace {

constexpr int32_t kMostIdleFrames = 60;
// A texture shown in one of the last frames may not have been drawn yet.
constexpr int32_t kFreeAfterFrames = 2;

/// FNV-1a over 32-bit words, as two independent chains to shorten the dependency chain of long
/// pictures.
uint64_t hash_of(const Pixels& pixels) {
  constexpr uint64_t kPrime = 0x100000001B3;
  uint64_t even = 0xCBF29CE484222325, odd = even ^ static_cast<uint64_t>(pixels.width);
  for (size_t i = 0; i < pixels.colors.size(); ++i) {
    uint32_t word = 0;
    std::memcpy(&word, &pixels.colors[i], sizeof word);
    uint64_t& chain = i % 2 == 0 ? even : odd;
    chain = (chain ^ word) * kPrime;
  }
  return even ^ (odd << 1 | odd >> 63);
}

}  // namespace

Textures::Textures(TextureDevice device) : device_(std::move(device)) {}

Textures::~Textures() {
  for (const Entry& entry : entries_) device_.destroy(entry.id);
}

uint64_t Textures::show(const Pixels& pixels) {
  CPSCOPE_CHECK(static_cast<int64_t>(pixels.colors.size()) ==
                    static_cast<int64_t>(pixels.width) * pixels.height,
                "cells do not fill their picture", pixels.colors.size(), pixels.width);
  const uint64_t contents = hash_of(pixels);
  Entry* unused = nullptr;
  for (Entry& entry : entries_) {
    if (entry.width != pixels.width || entry.height != pixels.height) continue;
    if (entry.contents == contents) {
      entry.idle_frames = 0;
      return entry.id;
    }
    if (entry.idle_frames >= kFreeAfterFrames) unused = &entry;
  }
  Image image;
  image.width = pixels.width;
  image.height = pixels.height;
  image.pixels = pixels.colors;
  ++sent_;
  if (unused != nullptr) {
    device_.replace(unused->id, image);
  } else {
    entries_.push_back({.id = device_.make(image), .width = image.width, .height = image.height});
    unused = &entries_.back();
  }
  unused->contents = contents;
  unused->idle_frames = 0;
  return unused->id;
}

void Textures::end_frame() {
  for (Entry& entry : entries_) {
    if (++entry.idle_frames > kMostIdleFrames) device_.destroy(entry.id);
  }
  std::erase_if(entries_, [](const Entry& entry) { return entry.idle_frames > kMostIdleFrames; });
  sent_ = 0;
}

}  // namespace cpscope::gui
