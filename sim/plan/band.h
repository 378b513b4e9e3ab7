#pragma once

#include <cstdint>

namespace cpscope {

/// A parallelogram in a q x k rectangle: rows [q0, q1) see columns [k0, k1) where lo <= (k - k0) -
/// (q - q0) <= hi. Full, causal, bottom-right, windowed and chunked areas, in any order of rows,
/// are lists of bands.
struct Band {
  int64_t q0 = 0, q1 = 0, k0 = 0, k1 = 0;
  int64_t lo = 0, hi = 0;

  friend bool operator==(const Band&, const Band&) = default;
};

/// A band over the rows of two local buffers, as a plan stores it (24 bytes).
struct BandSlice {
  int32_t q0 = 0, q1 = 0, k0 = 0, k1 = 0;
  int32_t lo = 0, hi = 0;

  constexpr operator Band() const { return {q0, q1, k0, k1, lo, hi}; }
  friend bool operator==(const BandSlice&, const BandSlice&) = default;
};

/// Bounds that no cell of a band can reach, for "no limit on this side".
inline constexpr int64_t kNoLow = -(int64_t{1} << 40);
inline constexpr int64_t kNoHigh = int64_t{1} << 40;

enum class TileClass : uint8_t { empty, partial, full };

/// Columns that row q sees: [begin, end), empty when begin >= end.
struct ColumnRange {
  int64_t begin = 0;
  int64_t end = 0;
};

ColumnRange columns_of_row(const Band& band, int64_t q);

/// Number of visible cells, in closed form.
int64_t count_pairs(const Band& band);

/// Number of visible cells in rows [q_begin, q_end) of the band.
int64_t count_pairs_in_rows(const Band& band, int64_t q_begin, int64_t q_end);

/// Number of visible cells inside the tile rows [q_begin, q_end) x columns [k_begin, k_end).
int64_t count_pairs_in_tile(const Band& band, int64_t q_begin, int64_t q_end, int64_t k_begin,
                            int64_t k_end);

/// The part of the band inside rows [q_begin, q_end) x columns [k_begin, k_end), tightened.
Band clip(const Band& band, int64_t q_begin, int64_t q_end, int64_t k_begin, int64_t k_end);

/// The same cells, with rows and columns that see nothing cut off and with lo, hi no wider than the
/// rectangle. All zero when nothing is visible.
Band tighten(Band band);

/// True if all cells of the rectangle are visible. Expects a tightened band.
bool is_full(const Band& band);

/// Class of a tile in closed form: covered wholly, in part or not at all.
TileClass classify_tile(const Band& band, int64_t q_begin, int64_t q_end, int64_t k_begin,
                        int64_t k_end);

}  // namespace cpscope
