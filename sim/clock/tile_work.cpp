#include "sim/clock/tile_work.h"

#include <algorithm>
#include <cmath>

namespace cpscope {

void TileCounter::close(Walk& walk) const {
  if (walk.end <= walk.begin) return;
  const int64_t all = (walk.end - walk.begin + cost_.tile_keys - 1) / cost_.tile_keys;
  const int64_t whole = std::max<int64_t>(0, walk.whole_end - walk.whole_begin) / cost_.tile_keys;
  walk.whole += whole;
  walk.masked += all - whole;
  walk.begin = walk.end = walk.whole_begin = walk.whole_end = 0;
}

void TileCounter::add_slice(const BandSlice& slice, int64_t q_rows) {
  const int64_t rows_of_tile = cost_.tile_rows;
  const int64_t first = slice.q0 / rows_of_tile, last = (slice.q1 - 1) / rows_of_tile;
  const auto begin_of = [&](int64_t q) {
    return std::max<int64_t>(slice.k0, int64_t{slice.k0} + (q - slice.q0) + slice.lo);
  };
  const auto end_of = [&](int64_t q) {
    return std::min<int64_t>(slice.k1, int64_t{slice.k0} + (q - slice.q0) + slice.hi + 1);
  };
  for (int64_t tile = first; tile <= last; ++tile) {
    const int64_t tile_end = std::min(q_rows, (tile + 1) * rows_of_tile);
    const int64_t a = std::max<int64_t>(slice.q0, tile * rows_of_tile);
    const int64_t b = std::min<int64_t>(slice.q1, tile_end);
    // The ends of the key range of a row never decrease with the row.
    const int64_t begin = begin_of(a), end = end_of(b - 1);
    if (begin >= end) continue;
    Walk& walk = walks_[static_cast<size_t>(tile)];
    walk.is_touched = true;
    // A mask is needed if rows of the tile are excluded.
    const bool is_all_rows = a == tile * rows_of_tile && b == tile_end;
    const int64_t whole_begin = begin_of(b - 1);
    const int64_t whole_end = is_all_rows ? std::max(whole_begin, end_of(a)) : whole_begin;
    const bool meets = walk.end > walk.begin && begin <= walk.end && end >= walk.begin;
    if (!meets) {
      close(walk);
      walk.begin = begin;
      walk.end = end;
      walk.whole_begin = whole_begin;
      walk.whole_end = whole_end;
      continue;
    }
    walk.begin = std::min(walk.begin, begin);
    walk.end = std::max(walk.end, end);
    const bool is_wholes_meeting = whole_end > whole_begin && walk.whole_end > walk.whole_begin &&
                                   whole_begin <= walk.whole_end && whole_end >= walk.whole_begin;
    if (is_wholes_meeting) {
      walk.whole_begin = std::min(walk.whole_begin, whole_begin);
      walk.whole_end = std::max(walk.whole_end, whole_end);
    } else if (whole_end - whole_begin > walk.whole_end - walk.whole_begin) {
      walk.whole_begin = whole_begin;
      walk.whole_end = whole_end;
    }
  }
}

TileWork TileCounter::count(std::span<const BandSlice> slices, int64_t q_rows, int64_t heads) {
  walks_.assign(static_cast<size_t>((q_rows + cost_.tile_rows - 1) / cost_.tile_rows), Walk());
  for (const BandSlice& slice : slices) {
    if (slice.q1 > slice.q0 && slice.k1 > slice.k0) add_slice(slice, q_rows);
  }
  TileWork work;
  for (Walk& walk : walks_) {
    if (!walk.is_touched) continue;
    close(walk);
    const double us = cost_.owned_us + static_cast<double>(walk.whole) * cost_.whole_us +
                      static_cast<double>(walk.masked) * cost_.masked_us;
    work.shortest_us = work.owned == 0 ? us : std::min(work.shortest_us, us);
    work.longest_us = std::max(work.longest_us, us);
    work.owned += heads;
    work.whole += walk.whole * heads;
    work.masked += walk.masked * heads;
    work.sum_us += us * static_cast<double>(heads);
  }
  return work;
}

double spread_us(const TileWork& work, double multiprocessors, double tail_share) {
  if (work.owned == 0) return 0.0;
  const double rounds = std::ceil(static_cast<double>(work.owned) / multiprocessors);
  const double left_free = rounds * multiprocessors - static_cast<double>(work.owned);
  const double tail = std::max(work.shortest_us * left_free / multiprocessors,
                               tail_share * (work.longest_us - work.shortest_us));
  return std::max(work.longest_us, work.sum_us / multiprocessors + tail);
}

}  // namespace cpscope
