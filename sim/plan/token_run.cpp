#include "sim/plan/token_run.h"

#include <algorithm>

namespace cpscope {

int64_t count_ids(std::span<const TokenRun> runs) {
  int64_t total = 0;
  for (const TokenRun& run : runs) total += run.count();
  return total;
}

void append_run(std::vector<TokenRun>& runs, TokenRun run) {
  // Stripes are runs by the ten million: no division decides what nearly all of them are.
  if (run.end <= run.begin) return;
  // A run of one id has no stride of its own; its canonical form has unit stride.
  if (run.end - run.begin <= run.stride) run = {run.begin, run.begin + 1, 1};
  if (!runs.empty()) {
    TokenRun& last = runs.back();
    const int64_t beyond = run.begin - last.end;
    if (last.stride == run.stride && beyond >= 0 && beyond < run.stride &&
        (run.stride == 1 || (run.begin - last.begin) % run.stride == 0)) {
      last.end = run.end;
      return;
    }
  }
  runs.push_back(run);
}

std::vector<TokenRun> runs_of(std::span<const int64_t> ids) {
  std::vector<TokenRun> runs;
  size_t i = 0;
  while (i < ids.size()) {
    size_t j = i + 1;
    const int64_t stride = j < ids.size() ? ids[j] - ids[i] : 1;
    if (stride >= 1) {
      while (j < ids.size() && ids[j] - ids[j - 1] == stride) ++j;
    }
    // Two ids with a gap are stored as two unit runs: a stride needs at least three ids.
    if (stride != 1 && j - i < 3) j = i + 1;
    runs.push_back({ids[i], ids[j - 1] + 1, j - i > 1 ? stride : 1});
    i = j;
  }
  return runs;
}

std::vector<int64_t> expand(std::span<const TokenRun> runs) {
  std::vector<int64_t> ids;
  ids.reserve(static_cast<size_t>(count_ids(runs)));
  for (const TokenRun& run : runs) {
    for (int64_t id = run.begin; id < run.end; id += run.stride) ids.push_back(id);
  }
  return ids;
}

std::vector<TokenRun> slice_rows(std::span<const TokenRun> runs, int64_t begin, int64_t end) {
  std::vector<TokenRun> rows;
  int64_t first = 0;
  for (const TokenRun& run : runs) {
    const int64_t count = run.count();
    const int64_t from = std::max<int64_t>(begin - first, 0);
    const int64_t to = std::min(end - first, count);
    if (from < to) append_run(rows, {run.at(from), run.at(to - 1) + 1, run.stride});
    first += count;
    if (first >= end) break;
  }
  return rows;
}

bool same_ids(std::span<const TokenRun> a, std::span<const TokenRun> b) {
  size_t i = 0, j = 0;
  int64_t used_a = 0, used_b = 0;  // ids already matched of a[i] and b[j]
  while (true) {
    while (i < a.size() && used_a == a[i].count()) ++i, used_a = 0;
    while (j < b.size() && used_b == b[j].count()) ++j, used_b = 0;
    if (i == a.size() || j == b.size()) return i == a.size() && j == b.size();
    if (a[i].at(used_a) != b[j].at(used_b)) return false;
    const int64_t left = std::min(a[i].count() - used_a, b[j].count() - used_b);
    // Runs of different strides share at most one id in a row.
    const int64_t step = a[i].stride == b[j].stride ? left : 1;
    used_a += step;
    used_b += step;
  }
}

}  // namespace cpscope
