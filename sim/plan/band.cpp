#include "sim/plan/band.h"

#include <algorithm>

namespace cpscope {
namespace {

/// Cells (i, j) of an nq x nk rectangle with j - i <= limit.
int64_t count_at_or_below(int64_t nq, int64_t nk, int64_t limit) {
  if (nq <= 0 || nk <= 0 || limit < -(nq - 1)) return 0;
  if (limit >= nk - 1) return nq * nk;
  // Row i holds clamp(i + limit + 1, 0, nk) cells: none before `first`, a ramp up to `full_from`,
  // then whole rows.
  const int64_t first = std::max<int64_t>(0, -limit);
  const int64_t full_from = std::min(nq, std::max(first, nk - limit - 1));
  const int64_t ramp_rows = full_from - first;
  const int64_t ramp = ramp_rows * (limit + 1) + (first + full_from - 1) * ramp_rows / 2;
  return ramp + (nq - full_from) * nk;
}

}  // namespace

ColumnRange columns_of_row(const Band& band, int64_t q) {
  if (q < band.q0 || q >= band.q1) return {};
  const int64_t diagonal = band.k0 + (q - band.q0);
  return {std::max(band.k0, diagonal + band.lo), std::min(band.k1, diagonal + band.hi + 1)};
}

int64_t count_pairs(const Band& band) {
  if (band.hi < band.lo) return 0;
  const int64_t nq = band.q1 - band.q0, nk = band.k1 - band.k0;
  return count_at_or_below(nq, nk, band.hi) - count_at_or_below(nq, nk, band.lo - 1);
}

Band clip(const Band& band, int64_t q_begin, int64_t q_end, int64_t k_begin, int64_t k_end) {
  Band part = band;
  part.q0 = std::max(band.q0, q_begin);
  part.q1 = std::min(band.q1, q_end);
  part.k0 = std::max(band.k0, k_begin);
  part.k1 = std::min(band.k1, k_end);
  if (part.q0 >= part.q1 || part.k0 >= part.k1) return {};
  const int64_t shift = (part.k0 - band.k0) - (part.q0 - band.q0);
  part.lo = band.lo - shift;
  part.hi = band.hi - shift;
  return tighten(part);
}

int64_t count_pairs_in_rows(const Band& band, int64_t q_begin, int64_t q_end) {
  return count_pairs(clip(band, q_begin, q_end, band.k0, band.k1));
}

int64_t count_pairs_in_tile(const Band& band, int64_t q_begin, int64_t q_end, int64_t k_begin,
                            int64_t k_end) {
  return count_pairs(clip(band, q_begin, q_end, k_begin, k_end));
}

Band tighten(Band band) {
  int64_t nq = band.q1 - band.q0, nk = band.k1 - band.k0;
  if (nq <= 0 || nk <= 0 || band.hi < band.lo || band.hi < -(nq - 1) || band.lo > nk - 1) return {};
  // Row i sees [i + lo, i + hi]: rows before -hi see no key yet, rows after nk-1-lo see no key any
  // more.
  const int64_t first_row = std::max<int64_t>(0, -band.hi);
  const int64_t end_row = std::min(nq, nk - band.lo);
  band.q0 += first_row;
  band.q1 = band.q0 + (end_row - first_row);
  band.lo += first_row;
  band.hi += first_row;
  nq = end_row - first_row;
  const int64_t first_column = std::max<int64_t>(0, band.lo);
  const int64_t end_column = std::min(nk, nq + band.hi);
  band.k0 += first_column;
  band.k1 = band.k0 + (end_column - first_column);
  nk = end_column - first_column;
  band.lo = std::max(band.lo - first_column, -(nq - 1));
  band.hi = std::min(band.hi - first_column, nk - 1);
  return band;
}

bool is_full(const Band& band) {
  return band.q1 > band.q0 && band.lo <= -(band.q1 - band.q0 - 1) &&
         band.hi >= band.k1 - band.k0 - 1;
}

TileClass classify_tile(const Band& band, int64_t q_begin, int64_t q_end, int64_t k_begin,
                        int64_t k_end) {
  if (q_begin < band.q0 || q_end > band.q1 || k_begin < band.k0 || k_end > band.k1) {
    return count_pairs_in_tile(band, q_begin, q_end, k_begin, k_end) == 0 ? TileClass::empty
                                                                          : TileClass::partial;
  }
  // Inside the rectangle the corners decide: j - i is smallest at the bottom left and largest at
  // the top right.
  const int64_t least = (k_begin - band.k0) - (q_end - 1 - band.q0);
  const int64_t most = (k_end - 1 - band.k0) - (q_begin - band.q0);
  if (most < band.lo || least > band.hi || band.hi < band.lo) return TileClass::empty;
  return least >= band.lo && most <= band.hi ? TileClass::full : TileClass::partial;
}

}  // namespace cpscope
