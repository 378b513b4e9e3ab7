#pragma once

#include "kernels/tiles/tile_list.h"

#include <cstdint>

namespace cpscope::kernels {

inline constexpr int kCtas = 132;  // of an H200

/// Costs in the model of the fused backward, in microseconds. The defaults fit measurements on H200
/// at head_dim 128 (kernels/notes/backward.md).
struct TurnCosts {
  double tile = 2.35;        // the products of a streamed tile
  double hand_over = 3.0;    // from a tile's dq being sent until the next CTA may send to its rows
  double sending = 3.0;      // of one tile by a sending thread
  double buffer = 0.6;       // until dq's shared memory is read
  double item = 3.0;         // between two items of a CTA
  int num_senders = 2;       // threads of a CTA that send, tile by tile alternately
  bool draws_ahead = false;  // an item is fetched when the one before begins, not when it ends
};

struct TurnTimes {
  double all = 0.0;    // until the last CTA ends
  double alone = 0.0;  // products only, spread evenly over the CTAs
  bool is_stuck = false;
  double read_bytes = 0.0;  // of streamed rows and their sums, read from memory because the cache
                            // does not hold them

  double loss() const { return all / alone; }
  double terabytes_per_second() const { return read_bytes * 1e-6 / all; }
};

/// Simulates the time of CTAs that fetch the list's items (of keys), stream their tiles and wait
/// for turns: the cost of order and turns before any device is measured. heads_walked: query heads
/// of a KV head. The L2 cache evicts the least recently used blocks; 30 MB of it are available.
TurnTimes walk_in_turns(const TileList& list, int32_t heads_walked, int num_ctas,
                        const TurnCosts& costs);

}  // namespace cpscope::kernels
