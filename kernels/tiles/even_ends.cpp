#include "kernels/tiles/even_ends.h"

#include "kernels/tiles/free_ctas.h"
#include "kernels/tiles/work_order.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace cpscope::kernels {
namespace {

int64_t num_ctas(const TileList& list) { return int64_t{list.shape.ctas_per_sm} * kHopperCtas; }

/// Time at which each CTA is free, and which one it is.
using CtaTimes = std::set<std::pair<double, int64_t>>;

/// The items of list.work from `first` to `end` (not included) are taken in their order.
void take_items(FreeCtas& ctas, const TileList& list, size_t first, size_t end) {
  for (size_t i = first; i < end; ++i)
    ctas.take_until(ctas.begin() + item_time(list, list.work[i]));
}

CtaTimes times_of(const FreeCtas& ctas) {
  CtaTimes times;
  for (const double time : ctas.times()) times.insert({time, static_cast<int64_t>(times.size())});
  return times;
}

/// When each item begins if no CTA may end later than `limit`: the longest item first, each to the
/// CTA that works longest so far and has room for it. Nothing if an item has no room.
std::optional<std::vector<double>> begins_within(double limit, CtaTimes ctas, const TileList& list,
                                                 const std::vector<WorkItem>& longest_first) {
  std::vector<double> begins;
  begins.reserve(longest_first.size());
  for (const WorkItem& item : longest_first) {
    const double cost = item_time(list, item);
    const auto above = ctas.upper_bound({limit - cost, std::numeric_limits<int64_t>::max()});
    if (above == ctas.begin()) return std::nullopt;
    const auto [begin, cta] = *std::prev(above);
    ctas.erase(std::prev(above));
    ctas.insert({begin + cost, cta});
    begins.push_back(begin);
  }
  return begins;
}

}  // namespace

double item_time(const TileList& list, const WorkItem& item) {
  constexpr double kOverhead = 2.5;  // of an item besides its tiles
  return list.tiles[item.tile].num_tiles + kOverhead;
}

void even_out_ends(TileList& list) {
  constexpr int64_t kMostItems = 64;  // of a CTA: with more items, none is long
  constexpr int64_t kLastItems = 3;   // of a CTA, which are reordered
  // Short items lose what they save, since more heads are then read at the same time.
  constexpr int32_t kShort = 24;                       // streamed tiles of the longest item
  constexpr double kWorthIt = 0.998, kOfShort = 0.98;  // of the time before
  constexpr int kBisections = 10;
  const int64_t ctas = num_ctas(list), items = static_cast<int64_t>(list.work.size());
  if (items <= ctas || items > kMostItems * ctas) return;
  const auto kept = static_cast<size_t>(std::max(int64_t{0}, items - kLastItems * ctas));
  FreeCtas ctas_in_order(ctas);
  take_items(ctas_in_order, list, 0, kept);
  const CtaTimes free = times_of(ctas_in_order);
  const double last_kept = ctas_in_order.last();
  take_items(ctas_in_order, list, kept, list.work.size());
  std::vector<WorkItem> longest_first(list.work.begin() + static_cast<ptrdiff_t>(kept),
                                      list.work.end());
  std::stable_sort(longest_first.begin(), longest_first.end(),
                   [&](const WorkItem& a, const WorkItem& b) {
                     return item_time(list, a) > item_time(list, b);
                   });
  double all = 0.0;
  int32_t longest = 0;
  for (const WorkItem& item : list.work) {
    all += item_time(list, item);
    longest = std::max(longest, list.tiles[item.tile].num_tiles);
  }
  double low = std::max(
             {all / static_cast<double>(ctas), last_kept, item_time(list, longest_first.front())}),
         high = (longest < kShort ? kOfShort : kWorthIt) * ctas_in_order.last();
  if (high < low) return;
  std::optional<std::vector<double>> best = begins_within(high, free, list, longest_first);
  if (!best) return;
  for (int i = 0; i < kBisections; ++i) {
    const double limit = (low + high) / 2;
    if (auto begins = begins_within(limit, free, list, longest_first)) {
      best = std::move(begins);
      high = limit;
    } else {
      low = limit;
    }
  }
  // A CTA that is free takes the item that begins then.
  std::vector<size_t> by_begin(longest_first.size());
  std::iota(by_begin.begin(), by_begin.end(), size_t{0});
  std::stable_sort(by_begin.begin(), by_begin.end(),
                   [&](size_t a, size_t b) { return (*best)[a] < (*best)[b]; });
  for (size_t i = 0; i < by_begin.size(); ++i) list.work[kept + i] = longest_first[by_begin[i]];
}

}  // namespace cpscope::kernels
