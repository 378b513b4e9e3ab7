#include "kernels/tiles/group_parts.h"

#include "kernels/tiles/free_ctas.h"
#include "kernels/tiles/shifted_begins.h"
#include "kernels/tiles/work_order.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

namespace cpscope::kernels {
namespace {

// The unit is the time of one streamed tile, 2 us.
constexpr double kItemTiles = 2.0;      // overhead of an item besides its tiles
constexpr double kHandOverTiles = 1.4;  // see make_batches
constexpr double kSumTiles = 2.0;       // launch of the kernel that adds the parts
constexpr double kBytesPerTile = 5e6;   // that this kernel reads, or the attention kernel writes
                                        // for it

constexpr int64_t kMostItems = 8 * kHopperCtas;  // with more items, none is long
// Parts take memory, so they must save at least 2 %.
constexpr double kWorthIt = 0.98;
constexpr double kMostPartBytes = 1e9;

/// The streamed tiles of one stationary tile, for one query head.
struct Walk {
  int32_t num_tiles = 0;
  int32_t first_row = 0;  // first streamed row of its last tile; tiles are taken from the last on
};

/// The walks of all stationary tiles that have streamed tiles, longest first.
std::vector<Walk> walks_of(const TileList& list) {
  std::vector<Walk> walks;
  for (const OwnedTile& tile : list.tiles) {
    if (tile.num_tiles > 0)
      walks.push_back({tile.num_tiles, list.runs[tile.first_run + tile.num_runs - 1].end});
  }
  std::stable_sort(walks.begin(), walks.end(),
                   [](const Walk& a, const Walk& b) { return a.num_tiles > b.num_tiles; });
  return walks;
}

/// Time at which the last CTA ends if CTAs take every walk for one head after another. starts_late:
/// CTAs that begin at the same rows of a head start one hand-over after each other.
double end_of(const std::vector<Walk>& walks, const WorkHeads& heads, bool starts_late) {
  FreeCtas ctas(kHopperCtas);
  std::map<std::pair<int32_t, int32_t>, double> begins;  // earliest begin of the next CTA at [first
                                                         // row, head]
  for (const Walk& walk : walks) {
    for (int32_t head = 0; head < heads.num_heads; ++head) {
      double begin = ctas.begin();
      if (starts_late) {
        double& next = begins[{walk.first_row, head}];
        begin = std::max(begin, next);
        next = begin + kHandOverTiles;
      }
      ctas.take_until(begin + walk.num_tiles * heads.heads_walked + kItemTiles);
    }
  }
  return ctas.last();
}

/// Factor by which tiles take longer because their rows come from memory. When tiles are streamed
/// one by one for all heads of a part, the CTAs in flight are on average as far apart as an item
/// has tiles. Where the cache does not hold that many rows, most rows come from memory, which
/// delivers a third of what the CTAs could take. Fewer rows miss the cache where many CTAs of one
/// chain began together. Fits the model of the tests (turn_model), and the model fits the
/// measurements (kernels/notes/backward.md).
double memory_factor(const std::vector<Walk>& walks, const WorkHeads& heads, const TileList& list) {
  if (!list.shape.by_blocks || !suits_walk_by_tile(heads, list)) return 1.0;
  constexpr double kMostFactor = 2.8, kFewest = 0.45;  // factor if all CTAs are apart; smallest
                                                       // share of CTAs that are
  int64_t tiles = 0, squares = 0;
  for (const Walk& walk : walks) {
    tiles += walk.num_tiles;
    squares += int64_t{walk.num_tiles} * walk.num_tiles;
  }
  const double apart = static_cast<double>(squares) / static_cast<double>(tiles) *
                       heads.heads_walked * list.shape.walked_rows;
  const double held = 1.3 * static_cast<double>(heads.cached_rows);
  const double missed = std::max(0.0, 1.0 - held / apart);
  const double spread = heads.num_heads * std::sqrt(heads.heads_walked) / 35.0;
  return std::max(1.0, kMostFactor * missed * std::clamp(spread, kFewest, 1.0));
}

}  // namespace

WorkHeads heads_in_parts(const WorkHeads& heads, int32_t parts) {
  WorkHeads result = heads;
  if (parts == 1) return result;
  result.num_heads *= parts;
  result.num_heads_of_step *= parts;
  result.most_at_once *= parts;
  result.heads_walked = std::min(heads.heads_walked, heads.group / parts);
  return result;
}

int32_t choose_group_parts(const WorkHeads& item_heads, bool is_packed, const TileList& list) {
  WorkHeads heads = item_heads;
  heads.num_heads = heads.all_heads();
  if (heads.group <= 1 || heads.heads_walked <= 1) return 1;
  const std::vector<Walk> walks = walks_of(list);
  if (walks.empty()) return 1;
  const bool has_few_items = static_cast<int64_t>(walks.size()) * heads.num_heads <= kMostItems;
  const double sum_bytes =
      static_cast<double>(heads.sum_row_bytes) * list.kv_rows * heads.num_heads;
  int64_t tiles = 0;  // of all heads
  for (const Walk& walk : walks)
    tiles += int64_t{walk.num_tiles} * heads.heads_walked * heads.num_heads;
  const double alone = static_cast<double>(tiles) / kHopperCtas;
  int32_t best = 1;
  double soonest = 0.0;
  for (int32_t parts = 1; parts <= heads.group && parts * sum_bytes <= kMostPartBytes; ++parts) {
    if (heads.group % parts != 0) continue;
    const WorkHeads split = heads_in_parts(heads, parts);
    const bool starts_late = list.shape.by_blocks && !suits_shifted_begins(split, is_packed, list);
    double end = has_few_items ? end_of(walks, split, starts_late) : alone;
    end += alone * (memory_factor(walks, split, list) - 1.0);
    // The parts are written by the attention kernel and read by the kernel that adds them.
    if (parts > 1) end += kSumTiles + 2.0 * parts * sum_bytes / kBytesPerTile;
    if (parts == 1 || end < kWorthIt * soonest) {
      best = parts;
      soonest = end;
    }
  }
  return best;
}

}  // namespace cpscope::kernels
