#include "reference/plain_pieces.h"

#include <algorithm>
#include <utility>

namespace cpscope::reference {

int64_t piece_length(int64_t longest, int32_t hops) {
  return std::max<int64_t>(1, (longest + hops - 1) / hops);
}

namespace {

/// Queries that see the key which most queries see.
int64_t most_queries_of_a_key(const HeadGroup& group) {
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
  return most;
}

}  // namespace

ShareSize size_of_share(const HeadGroup& group) {
  ShareSize size{std::max<int64_t>(1, group.part.num_queries()), group.heads_per_group()};
  if (group.hops.shares == 1 || !group.has_key_gradients()) return size;
  const int64_t most = most_queries_of_a_key(group);
  size.queries = piece_length(most, group.hops.shares);
  const CommType type = group.scenario.parallel.comm_type;
  const bool exchanges_heads = type == CommType::a2a || has_head_groups(type);
  // Ranks then add up shares of different heads of the same queries, however few these are.
  if (exchanges_heads && most > 0 && most < group.hops.shares)
    size.heads = static_cast<int32_t>(
        piece_length(size.heads, static_cast<int32_t>((group.hops.shares + most - 1) / most)));
  return size;
}

std::vector<KeyRun> order_shares(const HeadGroup& group, int64_t length) {
  const int64_t num_rows = group.part.num_queries();
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
