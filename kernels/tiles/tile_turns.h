#pragma once

#include "kernels/tiles/tile_list.h"

#include <cstdint>
#include <vector>

/// Turns, for lists by blocks: the order in which tiles add to the rows of streamed tiles.
namespace cpscope::kernels {

/// The rows of streamed blocks, cut into parts so that tiles without a common row never share a
/// part, and the order of turns of each part. Cost: O(streamed tiles), in time.
class BlockParts {
 public:
  /// Cuts the blocks that the list's tiles stream, and counts the parts.
  BlockParts(TileOwner owner, TileList& list);

  /// Computes the turns of all tiles if every head takes them in this order.
  void assign_turns(const std::vector<int32_t>& order, TileList& list);

  /// The same if tiles begin at these times and stream one tile a unit of time.
  void assign_turns_by_time(const std::vector<double>& begins, TileList& list);

 private:
  /// The last turn so far of a counter.
  struct LastTurn {
    int32_t run = -1;  // index into the list's runs
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

/// Records the stationary rows that have no partner.
void collect_gaps(TileOwner owner, TileList& list);

}  // namespace cpscope::kernels
