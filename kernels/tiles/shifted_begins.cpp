#include "kernels/tiles/shifted_begins.h"

#include "kernels/tiles/work_order.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <utility>

namespace cpscope::kernels {
namespace {

constexpr int32_t kShift = 3;        // blocks between the begins of two CTAs
constexpr double kTurnTiles = 1.3;   // in the time of a streamed tile
constexpr double kPauseTiles = 1.3;  // of an item besides its tiles
// Share of all time after which the last CTA would start. At head_dim 128 the late fetch of an item
// costs 4 us, and short tiles of a causal mask make up for some of the waiting.
constexpr double kLeastWaiting = 0.03, kLeastOfUneven = 0.085;

/// CTAs that take the tiles of a head.
int32_t ctas_of_head(const WorkHeads& heads, const TileList& list) {
  return list.shape.ctas_together / std::max(1, heads.num_heads);
}

/// The tile's runs so that it begins `skipped` streamed tiles further on and streams those at last.
/// Tiles are streamed from the last run to the first.
std::vector<TileRun> shifted_runs(const OwnedTile& tile, int32_t skipped, const TileList& list) {
  const int32_t walked = list.shape.walked_rows;
  std::vector<TileRun> begun, left;  // in the order in which they are streamed
  for (int32_t r = tile.num_runs; r-- > 0;) {
    const TileRun& run = list.runs[tile.first_run + r];
    const int32_t count = count_tiles(run, list.shape);
    const int32_t taken = std::min(skipped, count);
    skipped -= taken;
    const int32_t cut = taken == count ? run.begin
                        : taken == 0   ? run.end
                                       : ((run.end - 1) / walked - taken + 1) * walked;
    TileRun upper = run, lower = run;
    upper.begin = lower.end = cut;
    if (upper.begin < upper.end) left.push_back(upper);
    if (lower.begin < lower.end) begun.push_back(lower);
  }
  std::move(left.begin(), left.end(), std::back_inserter(begun));
  std::reverse(begun.begin(), begun.end());
  return begun;
}

}  // namespace

bool suits_shifted_begins(const WorkHeads& heads, bool is_packed, const TileList& list) {
  if (list.shape.ctas_together == 0 || heads.heads_walked != 1 || !heads.is_never_cut || is_packed)
    return false;
  const int32_t ctas = ctas_of_head(heads, list);
  int64_t tiles = 0, longest = 0;
  for (const OwnedTile& tile : list.tiles) {
    tiles += tile.num_tiles;
    longest = std::max<int64_t>(longest, tile.num_tiles);
  }
  // At head_dim 128 streamed tiles have fewer rows.
  const bool is_wide = list.shape.walked_rows < list.shape.owned_rows;
  const bool is_uneven =
      is_wide && 4 * tiles < 3 * longest * static_cast<int64_t>(list.tiles.size());
  const double alone = static_cast<double>(tiles) / std::max(1, ctas);
  // Where every CTA has one item at most, all begin at once, and the longest one ends last.
  return static_cast<int64_t>(list.tiles.size()) > ctas && ctas > 1 &&
         ctas * kTurnTiles >= (is_uneven ? kLeastOfUneven : kLeastWaiting) * alone;
}

std::vector<double> shift_begins(const WorkHeads& heads, TileList& list) {
  const int32_t ctas = ctas_of_head(heads, list);
  std::vector<int32_t> order(list.tiles.size());
  std::iota(order.begin(), order.end(), 0);
  sort_by_length(order, list);
  std::vector<double> begins(list.tiles.size()), free(static_cast<size_t>(ctas), 0.0);
  std::vector<int32_t> shifts(list.tiles.size(), 0);
  for (size_t i = 0; i < order.size(); ++i) {
    const OwnedTile& tile = list.tiles[order[i]];
    const auto cta = std::min_element(free.begin(), free.end());
    begins[order[i]] = *cta;
    *cta += tile.num_tiles + kPauseTiles;
    if (tile.num_tiles > 0)
      shifts[order[i]] = kShift * static_cast<int32_t>(i % ctas) % tile.num_tiles;
    for (int32_t head = 0; head < heads.num_heads; ++head) list.work.push_back({order[i], head});
  }
  std::vector<TileRun> runs;
  for (size_t t = 0; t < list.tiles.size(); ++t) {
    OwnedTile& tile = list.tiles[t];
    const std::vector<TileRun> shifted = shifted_runs(tile, shifts[t], list);
    tile.first_run = static_cast<int32_t>(runs.size());
    tile.num_runs = static_cast<int32_t>(shifted.size());
    runs.insert(runs.end(), shifted.begin(), shifted.end());
  }
  list.runs = std::move(runs);
  list.draws_late = true;
  return begins;
}

}  // namespace cpscope::kernels
