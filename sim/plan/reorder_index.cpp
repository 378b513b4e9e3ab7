#include "sim/plan/layout.h"

#include <algorithm>
#include <numeric>

namespace cpscope {
namespace {

/// Indices of the ids, by ascending id. Ids as close to each other as those of stripes are counted,
/// not sorted.
std::vector<size_t> order_of(const std::vector<int64_t>& ids) {
  constexpr int64_t kClose = 8;
  std::vector<size_t> order(ids.size());
  if (ids.empty()) return order;
  const auto [least, most] = std::minmax_element(ids.begin(), ids.end());
  if (*most - *least > kClose * std::ssize(ids)) {
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return ids[a] < ids[b]; });
    return order;
  }
  std::vector<size_t> place(static_cast<size_t>(*most - *least) + 1, 0);  // [id]
  for (const int64_t id : ids) ++place[static_cast<size_t>(id - *least)];
  std::exclusive_scan(place.begin(), place.end(), place.begin(), size_t{0});
  for (size_t i = 0; i < ids.size(); ++i) order[place[static_cast<size_t>(ids[i] - *least)]++] = i;
  return order;
}

}  // namespace

ReorderIndex reorder_to_sequence(std::span<const std::vector<TokenRun>> runs_by_rank) {
  struct Part {
    TokenRun run;
    int64_t row;  // first row in the rank-ordered buffer
  };
  std::vector<Part> parts;
  int64_t rows = 0;
  bool all_unit = true;
  for (const auto& runs : runs_by_rank) {
    for (const TokenRun& run : runs) {
      parts.push_back({run, rows});
      rows += run.count();
      all_unit = all_unit && run.stride == 1;
    }
  }
  ReorderIndex index;
  if (!all_unit) {
    // Strided runs interleave: write them out as single ids; the run lists below join them again.
    std::vector<Part> single;
    single.reserve(static_cast<size_t>(rows));
    for (const Part& part : parts) {
      for (int64_t i = 0; i < part.run.count(); ++i)
        single.push_back({{part.run.at(i), part.run.at(i) + 1, 1}, part.row + i});
    }
    parts = std::move(single);
  }
  std::vector<int64_t> sequence_row(parts.size());
  std::vector<int64_t> begins;
  begins.reserve(parts.size());
  for (const Part& part : parts) begins.push_back(part.run.begin);
  const std::vector<size_t> order = order_of(begins);
  int64_t next = 0;
  for (const size_t i : order) {
    const int64_t count = parts[i].run.count();
    append_run(index.sequence_tokens, parts[i].run);
    append_run(index.rank_to_sequence, {parts[i].row, parts[i].row + count, 1});
    sequence_row[i] = next;
    next += count;
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    append_run(index.sequence_to_rank,
               {sequence_row[i], sequence_row[i] + parts[i].run.count(), 1});
  }
  return index;
}

}  // namespace cpscope
