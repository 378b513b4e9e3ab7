#include "kernels/tiles/key_parts.h"

#include "kernels/tiles/free_ctas.h"
#include "kernels/tiles/work_order.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

namespace cpscope::kernels {
namespace {

constexpr int64_t kFewestTiles = 8;  // of a part
constexpr int64_t kSingleItems = 8;  // of a CTA, whose CTAs are told apart

// The unit is the time of one streamed tile.
constexpr double kBeginTiles = 1.5;  // of an item besides its tiles
// Of a part besides: a row of sums, written and read, is as many bytes as this many streamed rows.
constexpr double kStreamedRows = 3.0;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Of one of a tile's parts, where they are added up.
double part_cost(const OwnedTile& tile, const TileShape& shape) {
  return kStreamedRows * (tile.end - tile.begin) * shape.heads / shape.walked_rows;
}

/// For every tile, the ends of its parts, counted in its streamed tiles.
using PartEnds = std::vector<std::vector<int32_t>>;

/// Parts of equal length, of at most `most` streamed tiles.
PartEnds cut_equally(const TileList& list, int64_t most) {
  PartEnds ends;
  for (const OwnedTile& tile : list.tiles) {
    const int64_t count = std::max(int64_t{1}, divide_up(tile.num_tiles, most));
    std::vector<int32_t>& of_tile = ends.emplace_back();
    for (int64_t index = 1; index <= count; ++index)
      of_tile.push_back(static_cast<int32_t>(tile.num_tiles * index / count));
  }
  return ends;
}

/// Deals the streamed tiles of one head, tile after tile, to CTAs that work for `share` each.
PartEnds cut_in_shares(const TileList& list, double share) {
  constexpr auto kFewest = static_cast<int32_t>(kFewestTiles);
  PartEnds ends;
  double left = share;  // of the current CTA
  for (const OwnedTile& tile : list.tiles) {
    const double cost = kBeginTiles + part_cost(tile, list.shape);
    std::vector<int32_t>& of_tile = ends.emplace_back();
    for (int32_t done = 0; of_tile.empty() || done < tile.num_tiles; of_tile.push_back(done)) {
      if (left - cost < kFewest) left = share;
      const int32_t rest = tile.num_tiles - done;
      const auto room = std::max(kFewest, static_cast<int32_t>(left - cost));
      const bool takes_rest = room + kFewest > rest;
      const int32_t taken = takes_rest ? rest : room;
      left = takes_rest ? left - cost - taken : share;
      done += taken;
    }
  }
  return ends;
}

/// Times at which CTAs that work at the same time end; they take the longest parts first.
struct CtaEnds {
  double mean = 0.0;
  double last = 0.0;  // with many items, an upper bound
};

CtaEnds end_of_parts(const PartEnds& ends, const TileList& list, int32_t num_heads, int64_t ctas) {
  std::vector<double> times;
  double work = 0.0, longest = 0.0;
  for (size_t t = 0; t < ends.size(); ++t) {
    const std::vector<int32_t>& of_tile = ends[t];
    if (of_tile.back() == 0) continue;
    const double cost =
        kBeginTiles + (of_tile.size() > 1 ? part_cost(list.tiles[t], list.shape) : 0.0);
    int32_t begin = 0;
    for (const int32_t end : of_tile) {
      times.push_back(end - begin + cost);
      work += times.back() * num_heads;
      longest = std::max(longest, times.back());
      begin = end;
    }
  }
  const double mean = work / static_cast<double>(ctas);
  if (static_cast<int64_t>(times.size()) * num_heads > kSingleItems * ctas)
    return {mean, mean + longest};
  std::sort(times.begin(), times.end(), std::greater<>());
  FreeCtas free(ctas);
  for (const double time : times) {
    for (int32_t head = 0; head < num_heads; ++head) free.take_until(free.begin() + time);
  }
  return {mean, free.last()};
}

/// The parts that end first: equal ones, with the longest tile in 1, 2, 3 ... of them, or, if they
/// end clearly earlier, such as fill all CTAs.
PartEnds choose_parts(const WorkHeads& heads, const TileList& list) {
  constexpr double kClearly = 0.99;
  const int64_t ctas = int64_t{list.shape.ctas_per_sm} * kHopperCtas;
  int64_t longest = 0, all = 0;
  for (const OwnedTile& tile : list.tiles) {
    longest = std::max<int64_t>(longest, tile.num_tiles);
    all += tile.num_tiles;
  }
  PartEnds best = cut_equally(list, std::max<int64_t>(longest, 1));
  double soonest = end_of_parts(best, list, heads.num_heads, ctas).last;
  for (int64_t parts = 2; parts <= kMostKeyParts; ++parts) {
    const int64_t most = divide_up(longest, parts);
    if (most < kFewestTiles) break;
    PartEnds ends = cut_equally(list, most);
    const CtaEnds end = end_of_parts(ends, list, heads.num_heads, ctas);
    if (end.mean >= soonest) break;  // more parts are more work
    if (end.last >= soonest) continue;
    best = std::move(ends);
    soonest = end.last;
  }
  // Shares a little larger than an equal one, because of what items cost besides their tiles.
  soonest *= kClearly;
  const double equal = static_cast<double>(all) * heads.num_heads / static_cast<double>(ctas);
  const int64_t most_items = kSingleItems * ctas / std::max(1, heads.num_heads);
  if (static_cast<int64_t>(list.tiles.size()) > most_items) return best;
  for (int32_t more = 0; more < 24; ++more) {
    const double share = equal + kBeginTiles + 0.5 * more;
    if (share < kFewestTiles + kBeginTiles + 1) continue;
    PartEnds ends = cut_in_shares(list, share);
    const bool fits = std::all_of(ends.begin(), ends.end(), [](const auto& of_tile) {
      return of_tile.size() <= static_cast<size_t>(kMostKeyParts);
    });
    const double end = end_of_parts(ends, list, heads.num_heads, ctas).last;
    if (!fits || end >= soonest) continue;
    best = std::move(ends);
    soonest = end;
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
  const PartEnds ends = choose_parts(heads, list);
  const std::vector<OwnedTile> tiles = std::exchange(list.tiles, {});
  const std::vector<TileRun> runs = std::exchange(list.runs, {});
  for (size_t t = 0; t < tiles.size(); ++t) {
    const auto count = static_cast<int32_t>(ends[t].size());
    KeyPart part{0, count, list.num_part_slots};
    if (count > 1) list.cut_tiles.push_back(static_cast<int32_t>(list.tiles.size()));
    int32_t begin = 0;
    for (const int32_t end : ends[t]) {
      OwnedTile of_part = tiles[t];
      of_part.first_run = static_cast<int32_t>(list.runs.size());
      append_part_runs(runs, tiles[t], begin, end, list);
      of_part.num_runs = static_cast<int32_t>(list.runs.size()) - of_part.first_run;
      of_part.num_tiles = end - begin;
      list.tiles.push_back(of_part);
      list.parts.push_back(part);
      ++part.index;
      begin = end;
    }
    if (count > 1) list.num_part_slots += count;
  }
}

}  // namespace cpscope::kernels
