#include "sim/plan/layout_lpt.h"

#include "sim/base/check.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <tuple>

namespace cpscope {

std::vector<int64_t> chunk_areas(const MaskBands& mask, const BatchSlots& slots, int64_t chunk) {
  std::vector<int64_t> areas(static_cast<size_t>((slots.tokens + chunk - 1) / chunk), 0);
  for (size_t s = 0; s < slots.sequences.size(); ++s) {
    for_each_chunk(mask.of_sequence(static_cast<int64_t>(s)), slots.sequences[s].q_valid_begin(),
                   chunk, [&](int64_t id, const Band& band, int64_t begin, int64_t end) {
                     areas[static_cast<size_t>(id)] += count_pairs_in_rows(band, begin, end);
                   });
  }
  return areas;
}

std::vector<int64_t> order_by_area(const std::vector<int64_t>& areas) {
  std::vector<int64_t> order(areas.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::sort(order.begin(), order.end(),
            [&](int64_t a, int64_t b) { return std::tie(areas[a], a) > std::tie(areas[b], b); });
  return order;
}

std::vector<std::vector<int64_t>> assign_longest_first(const std::vector<int64_t>& areas,
                                                       int32_t ranks) {
  const int64_t n = static_cast<int64_t>(areas.size());
  CPSCOPE_CHECK(n >= ranks, "fewer chunks than ranks", n, ranks);
  const int64_t capacity = (n + ranks - 1) / ranks;
  const std::vector<int64_t> order = order_by_area(areas);

  using Entry = std::pair<int64_t, int32_t>;  // load, rank
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> by_load;
  for (int32_t rank = 0; rank < ranks; ++rank) by_load.emplace(0, rank);
  std::vector<std::vector<int64_t>> held(static_cast<size_t>(ranks));
  int64_t empty_ranks = ranks;
  for (int64_t num_assigned = 0; num_assigned < n; ++num_assigned) {
    const bool only_empty = n - num_assigned == empty_ranks;
    Entry entry = by_load.top();
    by_load.pop();
    // From now on only empty ranks may take chunks, so a rank that holds one is removed for good.
    while (only_empty && !held[entry.second].empty()) {
      entry = by_load.top();
      by_load.pop();
    }
    if (held[entry.second].empty()) --empty_ranks;
    held[entry.second].push_back(order[num_assigned]);
    // A full rank is removed for good.
    if (static_cast<int64_t>(held[entry.second].size()) < capacity)
      by_load.emplace(entry.first + areas[order[num_assigned]], entry.second);
  }
  for (std::vector<int64_t>& chunks : held) std::sort(chunks.begin(), chunks.end());
  return held;
}

}  // namespace cpscope
