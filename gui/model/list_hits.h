#pragma once

#include "gui/model/item_columns.h"
#include "sim/plan/plan.h"

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace cpscope::gui {

/// Ids [begin, end) of one side; empty if begin >= end.
struct IdRange {
  int64_t begin = 0, end = 0;
};

/// True if a run contains an id of the range.
bool meets(const TokenRun& run, IdRange ids);

/// Rows of a run list whose ids are in a range, as intervals.
std::vector<IdRange> rows_within(std::span<const TokenRun> list, IdRange ids);

/// Which run lists contain ids of a range of each side; each list is checked once.
class ListHits {
 public:
  ListHits(const Plan& plan, IdRange q, IdRange kv)
      : plan_(plan), ids_{q, kv}, known_(2 * plan.run_lists.size(), kUnknown) {}

  /// True if the list of this key (make_token_key) contains an id of the range.
  bool holds(int32_t key);
  /// True if all ids of a nonempty list are in the range.
  bool holds_all(int32_t key) { return holds(key) && known_[static_cast<size_t>(key)] == kAll; }
  /// Rows of the list with ids in the range.
  const std::vector<IdRange>& rows(int32_t key);
  const IdRange& ids(Side side) const { return ids_[side == Side::kv ? 1 : 0]; }

 private:
  static constexpr int8_t kUnknown = -1, kNone = 0, kSome = 1, kAll = 2;
  const Plan& plan_;
  IdRange ids_[2];
  std::vector<int8_t> known_;                                                // [key]
  std::pair<int32_t, std::vector<IdRange>> rows_[2] = {{-1, {}}, {-1, {}}};  // of the last list
};

}  // namespace cpscope::gui
