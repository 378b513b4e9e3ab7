#pragma once

#include <array>
#include <cstdint>

namespace cpscope {

/// Four random words from a counter and a key: Philox 4x32 with 10 rounds (Salmon et al. 2011,
/// SC11). The same words on every machine.
constexpr std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter,
                                         std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t left = uint64_t{0xD2511F53} * counter[0];
    const uint64_t right = uint64_t{0xCD9E8D57} * counter[2];
    counter = {
        static_cast<uint32_t>(right >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(right),
        static_cast<uint32_t>(left >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(left)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

}  // namespace cpscope
