#pragma once

#include "gui/model/axis.h"
#include "gui/model/mask/work_map.h"
#include "gui/model/pair_map.h"
#include "gui/model/view.h"
#include "sim/plan/direction.h"

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

namespace cpscope::gui {

/// The units whose class determines the colour of the cells inside them.
enum class MaskUnit : uint8_t { cell, chunk, tile };

/// The look of one cell, independent of the moment. hidden: not visible, but inside a partial unit.
enum class CellLook : uint8_t { empty, partial, full, padding, hidden };
inline constexpr size_t kCellLooks = 5;

/// Cells of a grid with their contents and the ranks that compute them. The work of the backward is
/// added on demand.
struct MaskGrid {
  PairGrid grid;
  std::vector<int64_t> counts;  // visible pairs of one head
  std::vector<CellClass> classes;
  ByDirection<std::shared_ptr<const WorkMap>> work;  // null until needed
};

/// What a camera shows of the mask, at every moment: made once per camera and size.
struct MaskPicture {
  MaskGrid cells;                 // at most kMostCells x kMostCells
  double q_step = 1, k_step = 1;  // ids per cell: the last one of an axis may have fewer
  std::vector<CellLook> looks;    // [row][column]
  std::array<std::vector<int32_t>, 2> owners;  // [side == kv][cell] rank of the middle id
  MaskUnit unit = MaskUnit::cell;
  MaskGrid chunks;  // chunk pairs; no cells if they would be too small
  MaskGrid tiles;   // kTileEdge x kTileEdge; no cells if they would be too small
  ByDirection<std::vector<HitRegion>> hits;  // chunk pairs
  uint64_t plan_hash = 0;
  TileCount counts;         // counts of the whole square
  bool is_strided = false;  // some rank owns every n-th token
};

inline constexpr int64_t kMostCells = 512;
inline constexpr int64_t kTileEdge = 128;
/// Chunk pairs and tiles are drawn if they have at least this size, in pixels.
inline constexpr double kLeastBlock = 6;

/// The picture to show now.
struct MaskFinding {
  std::shared_ptr<const MaskPicture> picture;  // null while the first one is being made
  bool is_current = false;  // else of an earlier camera or pass; its cells still have the right ids
};

/// The picture for axes over the square, with the work of one pass. Taken from the memo if it is
/// there; otherwise the last one of the plan while a new one is made in the background (remember).
MaskFinding find_mask_picture(const ViewInput& input, const Axis& q, const Axis& k,
                              Direction direction);

}  // namespace cpscope::gui
