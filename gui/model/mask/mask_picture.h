#pragma once

#include "gui/model/axis.h"
#include "gui/model/mask/work_map.h"
#include "gui/model/pair_map.h"
#include "gui/model/view.h"

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

namespace cpscope::gui {

/// The blocks whose class colours the cells inside them.
enum class MaskUnit : uint8_t { cell, chunk, tile };

/// How one cell is painted, whatever the moment. hidden: not visible, but inside a partial unit.
enum class CellLook : uint8_t { empty, partial, full, padding, hidden };
inline constexpr size_t kCellLooks = 5;

/// Cells of a grid with what they hold and who computes them. Work of the backward is added when it
/// is asked for.
struct MaskGrid {
  PairGrid grid;
  std::vector<int64_t> counts;  // visible pairs of one head
  std::vector<CellClass> classes;
  std::array<std::shared_ptr<const WorkMap>, 2> work;  // [is_backward], null until wanted
};

/// What a camera shows of the mask, at every moment: made once a camera and size.
struct MaskPicture {
  MaskGrid cells;                 // at most kMostCells x kMostCells
  double q_step = 1, k_step = 1;  // ids of a cell: the last one of an axis may hold fewer
  std::vector<CellLook> looks;    // [row][column]
  std::array<std::vector<int32_t>, 2> owners;  // [side == kv][cell] rank of the middle id
  MaskUnit unit = MaskUnit::cell;
  MaskGrid chunks;  // chunk pairs; without cells where they would be too small
  MaskGrid tiles;   // kTileEdge x kTileEdge; the same
  std::array<std::vector<HitRegion>, 2> hits;  // [is_backward] chunk pairs
  uint64_t plan_hash = 0;
  TileCount counts;         // of the whole square
  bool is_strided = false;  // some rank owns every n-th token
};

inline constexpr int64_t kMostCells = 512;
inline constexpr int64_t kTileEdge = 128;
/// Chunk pairs and tiles are drawn from this size on, in pixels.
inline constexpr double kLeastBlock = 6;

/// The picture to show now.
struct MaskFinding {
  std::shared_ptr<const MaskPicture> picture;  // null while the first one is being made
  bool is_current = false;  // else of an earlier camera or pass: its cells still name their ids
};

/// The picture for axes over the square, with the work of one pass. From the memo if it has it; the
/// last one of the plan while a new one is being made elsewhere (remember).
MaskFinding find_mask_picture(const ViewInput& input, const Axis& q, const Axis& k,
                              bool is_backward);

}  // namespace cpscope::gui
