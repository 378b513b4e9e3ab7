#pragma once

#include "sim/clock/cluster.h"
#include "sim/plan/band.h"

#include <cstdint>
#include <span>
#include <vector>

namespace cpscope {

/// The tiles of one compute item in a kernel with stationary query tiles and streamed key tiles.
struct TileWork {
  int64_t owned = 0;                       // stationary tiles that see a key, times heads
  int64_t whole = 0;                       // streamed tiles without a mask, times heads
  int64_t masked = 0;                      // streamed tiles with a mask, or short ones
  double sum_us = 0;                       // on one multiprocessor, one after another
  double longest_us = 0, shortest_us = 0;  // of one stationary tile
};

/// Counts tiles in closed form from the slices, without a list of them: every slice is cut at the
/// stationary tiles of queries; adjacent key ranges of a tile form one walk. Rows whose keys have
/// gaps give several walks. Holds scratch memory: one counter per thread.
class TileCounter {
 public:
  explicit TileCounter(const TileCost& cost) : cost_(cost) {}

  /// q_rows: rows of the item's query buffer. heads: those of the item. Cost: O(slices + stationary
  /// tiles that they cross).
  TileWork count(std::span<const BandSlice> slices, int64_t q_rows, int64_t heads);

 private:
  /// Keys [begin, end) that a stationary tile streams without a gap; all of its rows see
  /// [whole_begin, whole_end).
  struct Walk {
    int64_t begin = 0, end = 0, whole_begin = 0, whole_end = 0;
    int64_t whole = 0, masked = 0;  // tiles of the walks before this one
    bool is_touched = false;
  };
  void add_slice(const BandSlice& slice, int64_t q_rows);
  void close(Walk& walk) const;

  TileCost cost_;
  std::vector<Walk> walks_;  // [tile of queries]
};

/// Microseconds of an item on this many multiprocessors. Tiles go to the first free multiprocessor,
/// longest first: none ends later than an equal share plus one short tile, or the longest tile. If
/// the order is not that good (longest first among a few heads at a time), a share of the longest
/// tile is added at the end.
double spread_us(const TileWork& work, double multiprocessors, double tail_share);

}  // namespace cpscope
