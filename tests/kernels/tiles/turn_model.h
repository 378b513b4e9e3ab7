#pragma once

#include "kernels/tiles/tile_list.h"

#include <cstdint>

namespace cpscope::kernels {

inline constexpr int kCtas = 132;  // of an H200

/// What the model of the fused backward takes time for, in microseconds. The defaults fit what was
/// measured on H200 at 128 lanes (kernels/notes/backward.md).
struct TurnCosts {
  double tile = 2.35;        // the products of a walked tile
  double hand_over = 3.0;    // from a tile's dq being sent until the next CTA may send to its rows
  double sending = 3.0;      // a sending thread, of one tile
  double buffer = 0.6;       // until dq's shared memory is read
  double item = 3.0;         // between two items of a CTA
  int num_senders = 2;       // threads of a CTA that send, tile by tile in turns
  bool draws_ahead = false;  // an item is drawn when the one before begins, not when it ends
};

struct TurnTimes {
  double all = 0.0;    // until the last CTA ends
  double alone = 0.0;  // products alone, spread evenly over the CTAs
  bool is_stuck = false;
  double read_bytes = 0.0;  // of walked rows and their sums, from memory: what no cache holds

  double loss() const { return all / alone; }
  double terabytes_per_second() const { return read_bytes * 1e-6 / all; }
};

/// CTAs that draw the list's items (of keys), walk their tiles and wait for turns, in time: what
/// order and turns cost before any device is asked. heads_walked: query heads of a kv head. What a
/// CTA reads is there or not by the order of last use, in an L2 cache of which 30 MB are left for
/// it.
TurnTimes walk_in_turns(const TileList& list, int32_t heads_walked, int num_ctas,
                        const TurnCosts& costs);

}  // namespace cpscope::kernels
