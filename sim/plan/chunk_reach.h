#pragma once

#include <cstdint>
#include <vector>

namespace cpscope {

/// Which keys the queries of each chunk see, in chunks of the same size: bit k of row c is set if
/// chunk c sees some key of key chunk k. Both count packed padded tokens.
struct ChunkReach {
  /// Words [begin, end) of a row; the others are 0.
  struct Span {
    int64_t begin = 0, end = 0;
  };

  int64_t chunks = 0;
  int64_t key_chunks = 0;
  int64_t words = 0;           // of 64 key chunks, a row
  std::vector<uint64_t> bits;  // [chunk][word]
  std::vector<Span> spans;     // [chunk]

  const uint64_t* row(int64_t chunk) const { return bits.data() + chunk * words; }
};

inline bool has_bit(uint64_t word, int64_t bit) { return (word >> (bit % 64) & 1) != 0; }

inline void set_bit(uint64_t& word, int64_t bit) { word |= uint64_t{1} << (bit % 64); }

}  // namespace cpscope
