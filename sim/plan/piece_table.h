#pragma once

#include "sim/plan/band.h"
#include "sim/plan/batch_slots.h"
#include "sim/plan/mask_bands.h"
#include "sim/plan/token_run.h"

#include <cstdint>
#include <span>
#include <vector>

namespace cpscope {

/// The valid tokens of one sequence inside one run of a buffer: rows [row, row + count) hold
/// positions position, position + stride, ...
struct Piece {
  int64_t sequence = 0;
  int64_t row = 0;
  int64_t count = 0;
  int64_t position = 0;
  int64_t stride = 1;

  int64_t position_of(int64_t index) const { return position + index * stride; }
};

/// All pieces of one buffer, by sequence, then by row. Padding and tail rows belong to no piece.
struct PieceTable {
  std::vector<Piece> pieces;
  std::vector<int64_t> sequences;  // sequences with a piece here, ascending
  std::vector<int64_t> first;      // [sequences + 1] offsets into pieces

  std::span<const Piece> group(size_t index) const {
    return std::span(pieces).subspan(static_cast<size_t>(first[index]),
                                     static_cast<size_t>(first[index + 1] - first[index]));
  }
};

PieceTable make_pieces(std::span<const TokenRun> runs, const BatchSlots& slots, Side side);

/// Rows of one sequence that follow each other in a buffer: their last query and their first key,
/// as positions.
struct SequenceCorner {
  int64_t sequence = 0;
  int64_t last_position = 0, first_position = 0;
};

/// One for each stretch of rows of the table, ascending by sequence, then by first key.
std::vector<SequenceCorner> find_corners(const PieceTable& table);

/// Numbers of corners, without making them.
struct CornerCount {
  int64_t all = 0;
  int64_t most = 0;  // of one sequence
};

CornerCount count_corners(const PieceTable& table);
/// The same of the table that make_pieces would make.
CornerCount count_corners(std::span<const TokenRun> runs, const BatchSlots& slots, Side side);

/// A lower bound of the number of bands that `intersect` appends, without making them: stretches of
/// rows whose last query sees a first key. Only bands of adjacent rows and columns are joined.
int64_t count_least_bands(std::span<const SequenceCorner> q, std::span<const SequenceCorner> kv,
                          const MaskBands& mask);

/// Appends the bands over (row of the q buffer, row of the KV buffer) whose cells are exactly the
/// visible pairs of the two buffers. Adjacent full bands are joined. Returns the number of visible
/// pairs added (one head). Two pieces of different stride are intersected row by row of the shorter
/// one.
int64_t intersect(const PieceTable& q, const PieceTable& kv, const MaskBands& mask,
                  std::vector<BandSlice>& bands);

}  // namespace cpscope
