#include "kernels/lower/pass_writer.h"
#include "kernels/lower/passes.h"
#include "sim/plan/item_uses.h"

#include <algorithm>
#include <array>
#include <map>
#include <vector>

namespace cpscope::kernels {
namespace {

/// What does the work of a reorder item.
enum class ReorderSaving : uint8_t {
  none,     // the item itself
  landing,  // the transfers before it write rows in its order
  sending   // the transfers after it read rows in its order
};

/// Uses of a buffer in one pass.
struct PassTouches {
  int32_t landings = 0, sendings = 0;  // transfers to it, from it
  int32_t reorders_to = 0, reorders_from = 0;
  int64_t first_landing = -1, last_sending = -1;  // stage
};

/// Uses of a buffer, over both passes.
struct Touches {
  int32_t others = 0;  // merges, finishes, computes, additions; being a home buffer
  ByDirection<PassTouches> passes;
};

using Savings = ByDirection<std::vector<ReorderSaving>>;  // [reorder item]

bool is_permutation(const Plan& plan, RunListId list, int64_t rows) {
  if (list == kAllRows || plan.rows(list) != rows) return false;
  std::vector<bool> is_seen(static_cast<size_t>(rows), false);
  for (const TokenRun& run : plan.list(list)) {
    for (int64_t row = run.begin; row < run.end; row += run.stride) {
      if (row < 0 || row >= rows || is_seen[static_cast<size_t>(row)]) return false;
      is_seen[static_cast<size_t>(row)] = true;
    }
  }
  return true;
}

/// Finds the reorders that need no separate pass over memory. A buffer that is skipped is not
/// touched by any other item, in either pass.
class SavingFinder {
 public:
  explicit SavingFinder(const Plan& plan) : plan_(plan), touches_(plan.buffers.size()) {
    for (const Direction direction : kDirections) collect(direction);
    for (const HomeBuffers& home : plan.home)
      visit_buffers(home, [&](BufferId id) { ++touches_[id].others; });
  }

  Savings find() {
    Savings savings;
    for (const Direction direction : kDirections) {
      const Pass& pass = plan_.pass(direction);
      savings[direction].assign(pass.reorders.size(), ReorderSaving::none);
      for (size_t s = 0; s < pass.stages.size(); ++s) {
        const Stage& stage = pass.stages[s];
        for (int64_t i = stage.begin; stage.kind == StageKind::reorder && i < stage.end; ++i) {
          const auto item = static_cast<size_t>(i);
          savings[direction][item] = saving_of(direction, s, pass.reorders[item]);
        }
      }
    }
    // A buffer is skipped in all its items or in none.
    for (const Direction direction : kDirections) {
      for (size_t i = 0; i < savings[direction].size(); ++i) {
        if (savings[direction][i] == ReorderSaving::none)
          spoil(plan_.pass(direction).reorders[i], savings);
      }
    }
    return savings;
  }

 private:
  void collect(Direction direction) {
    const Pass& pass = plan_.pass(direction);
    const auto of = [&](BufferId id) -> PassTouches& { return touches_[id].passes[direction]; };
    const auto count_other = [&](const auto& item) {
      visit_buffers(item, [&](BufferId id) { ++touches_[id].others; });
    };
    for (size_t s = 0; s < pass.stages.size(); ++s) {
      const auto stage = static_cast<int64_t>(s);
      const auto touch = Overload{[&](const ItemId&, const TransferItem& item) {
                                    PassTouches& to = of(item.to);
                                    ++to.landings;
                                    if (item.landing == Landing::add) ++touches_[item.to].others;
                                    if (to.first_landing < 0) to.first_landing = stage;
                                    ++of(item.from).sendings;
                                    of(item.from).last_sending = stage;
                                  },
                                  [&](const ItemId&, const ReorderItem& item) {
                                    ++of(item.to).reorders_to;
                                    ++of(item.from).reorders_from;
                                  },
                                  [&](const ItemId&, const auto& item) { count_other(item); }};
      for_each_item(pass, direction, pass.stages[s], touch);
    }
  }

  /// True if an item of stages [begin, end) touches `id`.
  bool is_touched(const Pass& pass, BufferId id, size_t begin, size_t end) const {
    return is_named(pass, begin, end, [&](const auto& item) {
      bool found = false;
      visit_buffers(item, [&](BufferId touched) { found |= touched == id; });
      return found;
    });
  }

  /// True if an item of stages [begin, end) touches `id`, other than a transfer or a reorder that
  /// reads it.
  bool is_written(const Pass& pass, BufferId id, size_t begin, size_t end) const {
    return is_named(pass, begin, end,
                    Overload{[&](const TransferItem& item) { return item.to == id; },
                             [&](const ReorderItem& item) { return item.to == id; },
                             [&](const auto& item) {
                               bool found = false;
                               visit_buffers(item, [&](BufferId other) { found |= other == id; });
                               return found;
                             }});
  }

  template <class Names>
  bool is_named(const Pass& pass, size_t begin, size_t end, const Names& names) const {
    for (size_t s = begin; s < end; ++s) {
      const Stage& stage = pass.stages[s];
      for (int64_t i = stage.begin; i < stage.end; ++i) {
        if (visit_item(pass, stage.kind, i, names)) return true;
      }
    }
    return false;
  }

  ReorderSaving saving_of(Direction direction, size_t stage, const ReorderItem& item) const {
    const Pass& pass = plan_.pass(direction);
    const PassTouches &from = touches_[item.from].passes[direction],
                      &to = touches_[item.to].passes[direction];
    const int64_t rows = plan_.buffer(item.from).rows;
    if (plan_.buffer(item.to).rows != rows || !is_permutation(plan_, item.order, rows))
      return ReorderSaving::none;
    // Landing: only transfers fill `from`, only this item reads it.
    if (touches_[item.from].others == 0 && from.landings > 0 && from.sendings == 0 &&
        from.reorders_to == 0 && from.reorders_from == 1 && to.reorders_to == 1 &&
        from.first_landing < static_cast<int64_t>(stage) &&
        !is_touched(pass, item.from, stage + 1, pass.stages.size()) &&
        !is_touched(pass, item.to, static_cast<size_t>(from.first_landing), stage))
      return ReorderSaving::landing;
    // Sending: only this item fills `to`, only transfers read it.
    if (touches_[item.to].others == 0 && to.sendings > 0 && to.landings == 0 &&
        to.reorders_to == 1 && to.reorders_from == 0 &&
        to.last_sending > static_cast<int64_t>(stage) && !is_touched(pass, item.to, 0, stage) &&
        !is_written(pass, item.from, stage + 1, static_cast<size_t>(to.last_sending) + 1))
      return ReorderSaving::sending;
    return ReorderSaving::none;
  }

  /// If a reorder stays, the buffer between is filled and read as planned: then all other reorders
  /// of that buffer stay too.
  void spoil(const ReorderItem& kept, Savings& savings) const {
    for (const Direction direction : kDirections) {
      for (size_t i = 0; i < savings[direction].size(); ++i) {
        ReorderSaving& saving = savings[direction][i];
        const ReorderItem& item = plan_.pass(direction).reorders[i];
        const BufferId between = saving == ReorderSaving::landing   ? item.from
                                 : saving == ReorderSaving::sending ? item.to
                                                                    : kNoBuffer;
        if (between == kNoBuffer || (between != kept.from && between != kept.to)) continue;
        saving = ReorderSaving::none;
        spoil(item, savings);
      }
    }
  }

  const Plan& plan_;
  IdVector<BufferId, Touches> touches_;
};

/// Gives transfers the rows of skipped reorders: rows of the buffer between, as rows of the other
/// buffer.
class ReorderSkipper {
 public:
  ReorderSkipper(LoweredPlan& lowered, const Savings& savings)
      : plan_(lowered.plan), savings_(savings) {}

  void skip(Direction direction) {
    Pass& pass = plan_.pass(direction);
    std::map<BufferId, const ReorderItem*> landings, sendings;  // [buffer between]
    for (size_t i = 0; i < pass.reorders.size(); ++i) {
      const ReorderItem& item = pass.reorders[i];
      if (savings_[direction][i] == ReorderSaving::landing) landings[item.from] = &item;
      if (savings_[direction][i] == ReorderSaving::sending) sendings[item.to] = &item;
    }
    for (TransferItem& item : pass.transfers) {
      const auto landing = landings.find(item.to);
      const auto sending = sendings.find(item.from);
      const int64_t num_rows = plan_.rows_of(item);
      if (landing != landings.end()) {
        item.to_rows = list_of(*landing->second, ReorderSaving::landing, item.to_rows, num_rows);
        item.to = landing->second->to;
      }
      if (sending != sendings.end()) {
        item.from_rows =
            list_of(*sending->second, ReorderSaving::sending, item.from_rows, num_rows);
        item.from = sending->second->from;
      }
    }
  }

 private:
  /// `rows` (kAllRows: 0 to num_rows) of the buffer between.
  RunListId list_of(const ReorderItem& skipped, ReorderSaving saving, RunListId rows,
                    int64_t num_rows) {
    const std::array key{to_index(skipped.order), static_cast<int32_t>(saving), to_index(rows)};
    const auto [entry, is_new] = lists_.try_emplace(key);
    if (!is_new) return entry->second;
    const std::vector<int64_t>& map = map_of(skipped.order, saving);
    std::vector<int64_t> mapped;
    if (rows == kAllRows) {
      mapped.assign(map.begin(), map.begin() + num_rows);
    } else {
      mapped = expand(plan_.list(rows));
      for (int64_t& row : mapped) row = map[static_cast<size_t>(row)];
    }
    return entry->second = add_list(plan_, runs_of(mapped));
  }

  const std::vector<int64_t>& map_of(RunListId order, ReorderSaving saving) {
    const auto [entry, is_new] = maps_.try_emplace({to_index(order), static_cast<int32_t>(saving)});
    if (!is_new) return entry->second;
    std::vector<int64_t> taken = expand(plan_.list(order));
    if (saving == ReorderSaving::sending) return entry->second = std::move(taken);
    entry->second.resize(taken.size());
    for (size_t i = 0; i < taken.size(); ++i)
      entry->second[static_cast<size_t>(taken[i])] = static_cast<int64_t>(i);
    return entry->second;
  }

  Plan& plan_;
  const Savings& savings_;
  std::map<std::array<int32_t, 2>, std::vector<int64_t>> maps_;  // [order, saving]
  std::map<std::array<int32_t, 3>, RunListId> lists_;            // [order, saving, rows]
};

}  // namespace

void skip_reorders(LoweredPlan& lowered, const Lowering& /*lowering*/) {
  const Savings savings = SavingFinder(lowered.plan).find();
  ReorderSkipper skipper(lowered, savings);
  for (const Direction direction : kDirections) {
    skipper.skip(direction);
    keep_items(lowered, direction, [&](StageKind kind, size_t i) {
      return kind != StageKind::reorder || savings[direction][i] == ReorderSaving::none;
    });
  }
}

}  // namespace cpscope::kernels
