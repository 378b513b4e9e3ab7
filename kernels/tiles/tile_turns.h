#pragma once

#include "kernels/tiles/tile_list.h"

#include <cstdint>
#include <vector>

/// Turns, for lists by blocks: who adds to which walked rows, one after the other.
namespace cpscope::kernels {

/// The rows of walked blocks, cut so that tiles without a row in common never share a part, and
/// whose turn it is at each. Cost: O(walked tiles), in time.
class BlockParts {
 public:
  /// Cuts the blocks that the list's tiles walk, and counts the parts there.
  BlockParts(TileOwner owner, TileList& list);

  /// The turns of all tiles, if every head deals them in this order.
  void deal(const std::vector<int32_t>& order, TileList& list);

 private:
  /// Of a counter: the last turn so far.
  struct LastTurn {
    int32_t run = -1;  // of the list
    RowStretch rows;
  };

  void note(RowStretch rows);
  int32_t number();
  int32_t counter_of(RowStretch rows) const;
  const RowStretch& part_of(int32_t counter, RowStretch rows) const;
  TurnRun take_turn(RowStretch rows, int32_t run);
  std::vector<RowStretch> rows_without(const std::vector<bool>& has_counter) const;
  void close_runs(TileList& list) const;

  int32_t num_rows_, block_rows_;
  std::vector<std::vector<RowStretch>> parts_;  // [block]
  std::vector<int32_t> first_;                  // [block] counter of its first part
  std::vector<int32_t> taken_;                  // [counter]
  std::vector<bool> is_opened_;                 // [counter]
  std::vector<LastTurn> last_;                  // [counter]
};

/// Notes the owned rows that have no partner.
void collect_gaps(TileOwner owner, TileList& list);

}  // namespace cpscope::kernels
