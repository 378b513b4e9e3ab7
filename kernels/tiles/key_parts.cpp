#include "kernels/tiles/key_parts.h"

#include "kernels/tiles/work_order.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <utility>
#include <vector>

namespace cpscope::kernels {
namespace {

constexpr int64_t kFewestTiles = 8;  // of a part
constexpr int64_t kSingleItems = 8;  // of a CTA, whose CTAs are told apart

// The unit is the time of one streamed tile.
constexpr double kBeginTiles = 1.5;  // of an item besides its tiles
constexpr double kPartTiles = 0.1;   // of each part, where the parts of a tile are added up

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Time of one of a tile's parts, with its share of the work of adding them up.
double time_of_part(int32_t num_tiles, int64_t count) {
  const auto parts = static_cast<double>(count);
  return num_tiles / parts + kBeginTiles + (count > 1 ? kPartTiles : 0.0);
}

/// Time at which the last of `ctas` that work at the same time ends if no part has more than `most`
/// streamed tiles. tiles: longest first, as they are launched. With many items, an upper bound.
double end_of_parts(const std::vector<OwnedTile>& tiles, int32_t num_heads, int64_t ctas,
                    int64_t most) {
  int64_t items = 0;
  double work = 0.0, longest = 0.0;
  for (const OwnedTile& tile : tiles) {
    const int64_t count = divide_up(tile.num_tiles, most);
    const double time = time_of_part(tile.num_tiles, count);
    items += count * num_heads;
    work += time * static_cast<double>(count * num_heads);
    longest = std::max(longest, time);
  }
  if (items > kSingleItems * ctas) return work / static_cast<double>(ctas) + longest;
  std::priority_queue<double, std::vector<double>, std::greater<>> ends;
  double last = 0.0;
  for (const OwnedTile& tile : tiles) {
    const int64_t count = divide_up(tile.num_tiles, most);
    for (int64_t i = 0; i < count * num_heads; ++i) {
      double end = time_of_part(tile.num_tiles, count);
      if (static_cast<int64_t>(ends.size()) == ctas) {
        end += ends.top();
        ends.pop();
      }
      ends.push(end);
      last = std::max(last, end);
    }
  }
  return last;
}

/// Most streamed tiles of a part, for the earliest end: the longest tile in 1, 2, 3 ... parts.
int64_t tiles_of_part(const WorkHeads& heads, const TileList& list) {
  std::vector<OwnedTile> tiles;  // longest first, as they are launched
  for (const OwnedTile& tile : list.tiles) {
    if (tile.num_tiles > 0) tiles.push_back(tile);
  }
  if (tiles.empty()) return 1;
  std::stable_sort(tiles.begin(), tiles.end(), [](const OwnedTile& a, const OwnedTile& b) {
    return a.num_tiles > b.num_tiles;
  });
  const int64_t longest = tiles.front().num_tiles;
  int64_t best = longest;
  double soonest = std::numeric_limits<double>::infinity();
  for (int64_t parts = 1; parts <= kMostKeyParts; ++parts) {
    const int64_t most = divide_up(longest, parts);
    if (parts > 1 && most < kFewestTiles) break;
    const double end =
        end_of_parts(tiles, heads.num_heads, list.shape.ctas_per_sm * kHopperCtas, most);
    if (end < soonest) {
      best = most;
      soonest = end;
    }
  }
  return best;
}

/// Appends streamed tiles [begin, end) of a tile, counted over its runs.
void append_part_runs(const std::vector<TileRun>& runs, const OwnedTile& tile, int32_t begin,
                      int32_t end, TileList& list) {
  const int32_t walked = list.shape.walked_rows;
  int32_t passed = 0;
  for (int32_t r = tile.first_run; r < tile.first_run + tile.num_runs; ++r) {
    const TileRun& run = runs[static_cast<size_t>(r)];
    const auto num_tiles = static_cast<int32_t>(divide_up(run.end - run.begin, walked));
    const int32_t first = std::max(0, begin - passed), last = std::min(num_tiles, end - passed);
    passed += num_tiles;
    if (first >= last) continue;
    TileRun cut = run;
    cut.begin = run.begin + first * walked;
    cut.end = std::min(run.end, run.begin + last * walked);
    list.runs.push_back(cut);
  }
}

}  // namespace

void cut_keys(const WorkHeads& heads, TileList& list) {
  const int64_t most = tiles_of_part(heads, list);
  const std::vector<OwnedTile> tiles = std::exchange(list.tiles, {});
  const std::vector<TileRun> runs = std::exchange(list.runs, {});
  for (const OwnedTile& tile : tiles) {
    const auto count = static_cast<int32_t>(std::max(int64_t{1}, divide_up(tile.num_tiles, most)));
    KeyPart part{0, count, list.num_part_slots, list.num_cut_tiles};
    for (; part.index < count; ++part.index) {
      const auto bound = [&](int32_t index) {
        return static_cast<int32_t>(int64_t{tile.num_tiles} * index / count);
      };
      OwnedTile of_part = tile;
      of_part.first_run = static_cast<int32_t>(list.runs.size());
      append_part_runs(runs, tile, bound(part.index), bound(part.index + 1), list);
      of_part.num_runs = static_cast<int32_t>(list.runs.size()) - of_part.first_run;
      of_part.num_tiles = bound(part.index + 1) - bound(part.index);
      list.tiles.push_back(of_part);
      list.parts.push_back(part);
    }
    if (count == 1) continue;
    list.num_part_slots += count;
    ++list.num_cut_tiles;
  }
}

}  // namespace cpscope::kernels
