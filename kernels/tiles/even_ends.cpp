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

double cost_of(const TileList& list, const WorkItem& item) {
  constexpr double kOverhead = 2.5;  // of an item besides its tiles
  return list.tiles[item.tile].num_tiles + kOverhead;
}

int64_t num_ctas(const TileList& list) { return int64_t{list.shape.ctas_per_sm} * kHopperCtas; }

/// When each item begins if no CTA may end later than `limit`: the longest item first, each to the
/// CTA that works longest so far and has room for it. Nothing if an item has no room.
std::optional<std::vector<double>> begins_within(double limit, const TileList& list,
                                                 const std::vector<size_t>& longest_first) {
  std::set<std::pair<double, int64_t>> ctas;  // time at which a CTA is free
  for (int64_t i = 0; i < num_ctas(list); ++i) ctas.insert({0.0, i});
  std::vector<double> begins(list.work.size());
  for (const size_t i : longest_first) {
    const double cost = cost_of(list, list.work[i]);
    const auto above = ctas.upper_bound({limit - cost, std::numeric_limits<int64_t>::max()});
    if (above == ctas.begin()) return std::nullopt;
    const auto [begin, cta] = *std::prev(above);
    ctas.erase(std::prev(above));
    ctas.insert({begin + cost, cta});
    begins[i] = begin;
  }
  return begins;
}

}  // namespace

double model_end(const TileList& list) {
  FreeCtas ctas(num_ctas(list));
  for (const WorkItem& item : list.work) ctas.take_until(ctas.begin() + cost_of(list, item));
  return ctas.last();
}

void even_out_ends(TileList& list) {
  constexpr int64_t kMostItems = 16;  // of a CTA: with more items, none is long
  constexpr double kWorthIt = 0.98;   // of the time before
  constexpr int kBisections = 10;
  const int64_t ctas = num_ctas(list), items = static_cast<int64_t>(list.work.size());
  if (items <= ctas || items > kMostItems * ctas) return;
  double all = 0.0, longest = 0.0;
  for (const WorkItem& item : list.work) {
    all += cost_of(list, item);
    longest = std::max(longest, cost_of(list, item));
  }
  double low = std::max(all / static_cast<double>(ctas), longest),
         high = kWorthIt * model_end(list);
  if (high < low) return;
  std::vector<size_t> longest_first(list.work.size());
  std::iota(longest_first.begin(), longest_first.end(), size_t{0});
  std::stable_sort(longest_first.begin(), longest_first.end(), [&](size_t a, size_t b) {
    return cost_of(list, list.work[a]) > cost_of(list, list.work[b]);
  });
  std::optional<std::vector<double>> best = begins_within(high, list, longest_first);
  if (!best) return;
  for (int i = 0; i < kBisections; ++i) {
    const double limit = (low + high) / 2;
    if (auto begins = begins_within(limit, list, longest_first)) {
      best = std::move(begins);
      high = limit;
    } else {
      low = limit;
    }
  }
  // A CTA that is free takes the item that begins then.
  std::stable_sort(longest_first.begin(), longest_first.end(),
                   [&](size_t a, size_t b) { return (*best)[a] < (*best)[b]; });
  std::vector<WorkItem> work;
  work.reserve(list.work.size());
  for (const size_t i : longest_first) work.push_back(list.work[i]);
  list.work = std::move(work);
}

}  // namespace cpscope::kernels
