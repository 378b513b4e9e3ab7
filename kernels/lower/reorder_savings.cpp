#include "kernels/lower/reorder_savings.h"

#include "kernels/lower/item_buffers.h"

#include <algorithm>
#include <array>

namespace cpscope::kernels {
namespace {

/// Uses of a buffer, over both passes.
struct Touches {
  int32_t others = 0;  // merges, finishes, computes, additions; being a home buffer
  std::array<int32_t, 2> landings{}, sendings{};  // [pass] transfers to it, from it
  std::array<int32_t, 2> reorders_to{}, reorders_from{};
  std::array<int64_t, 2> first_landing{-1, -1}, last_sending{-1, -1};  // [pass] stage
};

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

class SavingFinder {
 public:
  explicit SavingFinder(const Plan& plan) : plan_(plan), touches_(plan.buffers.size()) {
    for (size_t p = 0; p < 2; ++p) collect(p);
    for (const HomeBuffers& home : plan.home)
      visit_buffers(home, [&](BufferId id) { ++of(id).others; });
  }

  std::array<std::vector<ReorderSaving>, 2> find() {
    std::array<std::vector<ReorderSaving>, 2> savings;
    for (size_t p = 0; p < 2; ++p) {
      savings[p].assign(pass(p).reorders.size(), ReorderSaving::none);
      for (const Stage& stage : pass(p).stages) {
        const int64_t at = &stage - pass(p).stages.data();
        for (int64_t i = stage.begin; stage.kind == StageKind::reorder && i < stage.end; ++i)
          savings[p][static_cast<size_t>(i)] =
              saving_of(p, at, pass(p).reorders[static_cast<size_t>(i)]);
      }
    }
    // A buffer is skipped in all its items or in none.
    for (size_t p = 0; p < 2; ++p) {
      for (size_t i = 0; i < savings[p].size(); ++i) {
        const ReorderItem& item = pass(p).reorders[i];
        if (savings[p][i] == ReorderSaving::none) spoil(item, savings);
      }
    }
    return savings;
  }

 private:
  const Pass& pass(size_t p) const { return p == 0 ? plan_.forward : plan_.backward; }
  Touches& of(BufferId id) { return touches_[static_cast<size_t>(to_index(id))]; }

  void collect(size_t p) {
    const auto other = [&](BufferId id) { ++of(id).others; };
    for (const Stage& stage : pass(p).stages) {
      const int64_t at = &stage - pass(p).stages.data();
      for (int64_t i = stage.begin; stage.kind == StageKind::transfer && i < stage.end; ++i) {
        const TransferItem& item = pass(p).transfers[static_cast<size_t>(i)];
        Touches& to = of(item.to);
        ++to.landings[p];
        if (item.landing == Landing::add) ++to.others;
        if (to.first_landing[p] < 0) to.first_landing[p] = at;
        ++of(item.from).sendings[p];
        of(item.from).last_sending[p] = at;
      }
    }
    for (const ReorderItem& item : pass(p).reorders) {
      ++of(item.to).reorders_to[p];
      ++of(item.from).reorders_from[p];
    }
    for (const ComputeItem& item : pass(p).computes) visit_buffers(item, other);
    for (const MergeItem& item : pass(p).merges) visit_buffers(item, other);
    for (const FinishItem& item : pass(p).finishes) visit_buffers(item, other);
  }

  /// True if `id` is touched in stages [begin, end) of the pass.
  bool is_touched(size_t p, BufferId id, int64_t begin, int64_t end) const {
    for (int64_t s = begin; s < end; ++s) {
      const Stage& stage = pass(p).stages[static_cast<size_t>(s)];
      for (int64_t i = stage.begin; i < stage.end; ++i) {
        if (touches(p, stage.kind, static_cast<size_t>(i), id)) return true;
      }
    }
    return false;
  }

  bool touches(size_t p, StageKind kind, size_t i, BufferId id) const {
    bool found = false;
    visit_buffers(pass(p), kind, i, [&](BufferId touched) { found |= touched == id; });
    return found;
  }

  ReorderSaving saving_of(size_t p, int64_t stage, const ReorderItem& item) {
    const Touches &from = of(item.from), &to = of(item.to);
    const int64_t rows = plan_.buffer(item.from).rows;
    if (plan_.buffer(item.to).rows != rows || !is_permutation(plan_, item.order, rows))
      return ReorderSaving::none;
    // Landing: only transfers fill `from`, only this item reads it.
    if (from.others == 0 && from.landings[p] > 0 && from.sendings[p] == 0 &&
        from.reorders_to[p] == 0 && from.reorders_from[p] == 1 && to.reorders_to[p] == 1 &&
        from.first_landing[p] < stage && !is_touched(p, item.from, stage + 1, end_of(p)) &&
        !is_touched(p, item.to, from.first_landing[p], stage))
      return ReorderSaving::landing;
    // Sending: only this item fills `to`, only transfers read it.
    if (to.others == 0 && to.sendings[p] > 0 && to.landings[p] == 0 && to.reorders_to[p] == 1 &&
        to.reorders_from[p] == 0 && to.last_sending[p] > stage &&
        !is_touched(p, item.to, 0, stage) &&
        !is_written(p, item.from, stage + 1, to.last_sending[p] + 1))
      return ReorderSaving::sending;
    return ReorderSaving::none;
  }

  int64_t end_of(size_t p) const { return static_cast<int64_t>(pass(p).stages.size()); }

  bool is_written(size_t p, BufferId id, int64_t begin, int64_t end) const {
    for (int64_t s = begin; s < end; ++s) {
      const Stage& stage = pass(p).stages[static_cast<size_t>(s)];
      for (int64_t i = stage.begin; i < stage.end; ++i) {
        const auto item = static_cast<size_t>(i);
        // Another reorder or transfer may read it as well.
        if (stage.kind == StageKind::transfer && pass(p).transfers[item].to != id) continue;
        if (stage.kind == StageKind::reorder && pass(p).reorders[item].to != id) continue;
        if (touches(p, stage.kind, item, id)) return true;
      }
    }
    return false;
  }

  /// If a reorder stays, the buffer between is filled and read as planned: then all other reorders
  /// of that buffer stay too.
  void spoil(const ReorderItem& kept, std::array<std::vector<ReorderSaving>, 2>& savings) const {
    for (size_t p = 0; p < 2; ++p) {
      for (size_t i = 0; i < savings[p].size(); ++i) {
        const ReorderItem& item = pass(p).reorders[i];
        const BufferId between = savings[p][i] == ReorderSaving::landing   ? item.from
                                 : savings[p][i] == ReorderSaving::sending ? item.to
                                                                           : kNoBuffer;
        if (between == kNoBuffer || (between != kept.from && between != kept.to)) continue;
        savings[p][i] = ReorderSaving::none;
        spoil(item, savings);
      }
    }
  }

  const Plan& plan_;
  std::vector<Touches> touches_;  // [buffer]
};

}  // namespace

std::array<std::vector<ReorderSaving>, 2> find_reorder_savings(const Plan& plan) {
  return SavingFinder(plan).find();
}

const std::vector<int64_t>& SkippedRows::map_of(RunListId order, ReorderSaving saving) {
  const auto [entry, is_new] = maps_.try_emplace({to_index(order), saving});
  if (!is_new) return entry->second;
  std::vector<int64_t> taken = expand(plan_.list(order));
  if (saving == ReorderSaving::sending) return entry->second = std::move(taken);
  entry->second.resize(taken.size());
  for (size_t i = 0; i < taken.size(); ++i)
    entry->second[static_cast<size_t>(taken[i])] = static_cast<int64_t>(i);
  return entry->second;
}

std::vector<TokenRun> SkippedRows::find(const ReorderItem& skipped, ReorderSaving saving,
                                        RunListId rows, int64_t num_rows) {
  const std::vector<int64_t>& map = map_of(skipped.order, saving);
  std::vector<int64_t> mapped;
  if (rows == kAllRows) {
    mapped.assign(map.begin(), map.begin() + num_rows);
  } else {
    mapped = expand(plan_.list(rows));
    for (int64_t& row : mapped) row = map[static_cast<size_t>(row)];
  }
  return runs_of(mapped);
}

}  // namespace cpscope::kernels
