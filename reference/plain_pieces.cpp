#include "reference/plain_pieces.h"

#include <algorithm>
#include <utility>

namespace cpscope::reference {

int64_t piece_length(int64_t longest, int32_t hops) {
  return std::max<int64_t>(1, (longest + hops - 1) / hops);
}

namespace {

/// Number of queries in one piece, such that the key seen by most queries overlaps as many pieces
/// as the schedule adds shares.
int64_t queries_per_share(const HeadGroup& group) {
  if (group.hops.shares == 1 || !group.has_key_gradients())
    return std::max<int64_t>(1, group.part.num_queries());
  std::vector<int64_t> change(static_cast<size_t>(group.part.num_keys()) + 1, 0);
  for (const KeyRun& run : group.part.visible.runs) {
    ++change[static_cast<size_t>(run.begin)];
    --change[static_cast<size_t>(run.end)];
  }
  int64_t seen_by = 0, most = 0;
  for (const int64_t step : change) {
    seen_by += step;
    most = std::max(most, seen_by);
  }
  return piece_length(most, group.hops.shares);
}

}  // namespace

std::vector<KeyRun> order_shares(const HeadGroup& group) {
  const int64_t length = queries_per_share(group), num_rows = group.part.num_queries();
  std::vector<std::pair<double, KeyRun>> shares;  // mean number of visible keys, queries
  for (int64_t begin = 0; begin < num_rows; begin += length) {
    const int64_t end = std::min(begin + length, num_rows);
    int64_t pairs = 0;
    for (int64_t row = begin; row < end; ++row) {
      for (const KeyRun& run : group.part.visible.of_row(row)) pairs += run.end - run.begin;
    }
    const double mean = static_cast<double>(pairs) / static_cast<double>(end - begin);
    shares.emplace_back(mean, KeyRun{begin, end});
  }
  std::stable_sort(shares.begin(), shares.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<KeyRun> queries;
  for (const auto& share : shares) queries.push_back(share.second);
  return queries;
}

}  // namespace cpscope::reference
