#include "gui/model/list_hits.h"

#include <algorithm>

namespace cpscope::gui {

bool meets(const TokenRun& run, IdRange ids) {
  const int64_t begin = std::max(run.begin, ids.begin), end = std::min(run.end, ids.end);
  if (begin >= end) return false;
  // The first id of the run at or after `begin`.
  const int64_t first = run.begin + (begin - run.begin + run.stride - 1) / run.stride * run.stride;
  return first < end;
}

std::vector<IdRange> rows_within(std::span<const TokenRun> list, IdRange ids) {
  std::vector<IdRange> rows;
  int64_t row = 0;
  for (const TokenRun& run : list) {
    if (meets(run, ids)) {
      const auto steps_to = [&](int64_t id) {
        return id <= run.begin ? 0 : (id - run.begin + run.stride - 1) / run.stride;
      };
      const int64_t begin = row + steps_to(ids.begin);
      const int64_t end = row + std::min(run.count(), steps_to(ids.end));
      if (!rows.empty() && rows.back().end == begin)
        rows.back().end = end;
      else
        rows.push_back({begin, end});
    }
    row += run.count();
  }
  return rows;
}

bool ListHits::holds(int32_t key) {
  if (key < 0) return false;
  int8_t& known = known_[static_cast<size_t>(key)];
  if (known == kUnknown) {
    const auto list = plan_.list(RunListId{key / 2});
    const IdRange ids = ids_[key % 2];
    const bool some =
        std::any_of(list.begin(), list.end(), [&](const TokenRun& run) { return meets(run, ids); });
    const bool all = some && std::all_of(list.begin(), list.end(), [&](const TokenRun& run) {
                       return run.count() == 0 || (run.begin >= ids.begin && run.last() < ids.end);
                     });
    known = all ? kAll : some ? kSome : kNone;
  }
  return known != kNone;
}

const std::vector<IdRange>& ListHits::rows(int32_t key) {
  auto& found = rows_[key % 2];
  if (found.first != key) found = {key, rows_within(plan_.list(RunListId{key / 2}), ids_[key % 2])};
  return found.second;
}

}  // namespace cpscope::gui
