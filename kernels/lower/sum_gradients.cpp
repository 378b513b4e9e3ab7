#include "kernels/lower/pass_writer.h"
#include "kernels/lower/passes.h"
#include "sim/plan/item_uses.h"

#include <algorithm>
#include <optional>

namespace cpscope::kernels {
namespace {

/// Merges and finishes of gradients that adjacent transfers can do.
struct SumSavings {
  std::vector<bool> replaces;       // [transfer item] replaces the destination instead of adding
  std::vector<Rounding> roundings;  // [transfer item]
  std::vector<bool> is_merged;      // [merge item] zeroing that is not needed
  std::vector<bool> is_finished;    // [finish item] rounding that transfers do
  IdVector<BufferId, bool> is_sum;  // only zeroed, added to, and rounded
};

/// An item that touches a buffer.
struct Touch {
  StageKind kind{};
  size_t item = 0;
};

class SumFinder {
 public:
  SumFinder(const Plan& plan, const Pass& pass)
      : plan_(plan), pass_(pass), touches_(plan.buffers.size()) {
    found_.replaces.assign(pass.transfers.size(), false);
    found_.roundings.assign(pass.transfers.size(), {});
    found_.is_merged.assign(pass.merges.size(), false);
    found_.is_finished.assign(pass.finishes.size(), false);
    found_.is_sum.assign(plan.buffers.size(), false);
  }

  SumSavings find() {
    for_each_item(plan_, Direction::backward, [&](const ItemId& id, const auto& item) {
      visit_buffers(item, [&](BufferId buffer) {
        touches_[buffer].push_back({id.kind, static_cast<size_t>(id.index)});
      });
    });
    const IdVector<BufferId, bool> is_home = home_gradients(plan_);
    for (const BufferId id : touches_.ids()) {
      const BufferKind kind = plan_.buffer(id).kind;
      if (kind != BufferKind::dq && kind != BufferKind::dkv) continue;
      found_.is_sum[id] = is_sum(id, touches_[id]);
      if (found_.is_sum[id]) save_sum(id, touches_[id]);
      if (!is_home[id]) save_sending(id, touches_[id]);
    }
    return std::move(found_);
  }

 private:
  bool is_addition(BufferId to, const Touch& touch) const {
    return touch.kind == StageKind::transfer && pass_.transfers[touch.item].to == to &&
           pass_.transfers[touch.item].landing == Landing::add;
  }

  /// True if the buffer's only uses are zeroing, transfers that add to it, and a rounding.
  bool is_sum(BufferId id, const std::vector<Touch>& touches) const {
    return touches.size() >= 3 && touches.front().kind == StageKind::merge &&
           pass_.merges[touches.front().item].partial == kNoBuffer &&
           touches.back().kind == StageKind::finish &&
           std::all_of(touches.begin() + 1, touches.end() - 1,
                       [&](const Touch& touch) { return is_addition(id, touch); });
  }

  void save_sum(BufferId id, const std::vector<Touch>& touches) {
    std::vector<Touch> additions(touches.begin() + 1, touches.end() - 1);
    if (const auto firsts = find_firsts(id, additions)) {
      found_.is_merged[touches.front().item] = true;
      for (const size_t item : *firsts) found_.replaces[item] = true;
    }
    std::reverse(additions.begin(), additions.end());
    if (const auto lasts = find_firsts(id, additions)) {
      found_.is_finished[touches.back().item] = true;
      for (const size_t item : *lasts) found_.roundings[item].sums = true;
    }
  }

  /// Finds the additions that come first to all their rows. Nothing if one is first for only some
  /// of its rows, or if a row has no addition.
  std::optional<std::vector<size_t>> find_firsts(BufferId id,
                                                 const std::vector<Touch>& additions) const {
    const BufferSpec& spec = plan_.buffer(id);
    // Heads that all additions treat alike are checked only once.
    const std::vector<int32_t> heads = first_heads(spec.heads, additions);
    std::vector<bool> is_seen(static_cast<size_t>(spec.rows) * heads.size(), false);
    std::vector<size_t> firsts;
    for (const Touch& addition : additions) {
      const TransferItem& item = pass_.transfers[addition.item];
      int64_t num_new = 0, num_all = 0;
      const auto begin = std::lower_bound(heads.begin(), heads.end(), item.heads.begin);
      const auto end = std::lower_bound(begin, heads.end(), item.heads.end);
      for (const int64_t row : rows_of(item)) {
        for (auto head = begin; head != end; ++head, ++num_all) {
          const size_t cell =
              static_cast<size_t>(row) * heads.size() + static_cast<size_t>(head - heads.begin());
          num_new += is_seen[cell] ? 0 : 1;
          is_seen[cell] = true;
        }
      }
      if (num_new != 0 && num_new != num_all) return std::nullopt;
      if (num_new != 0) firsts.push_back(addition.item);
    }
    if (std::find(is_seen.begin(), is_seen.end(), false) != is_seen.end()) return std::nullopt;
    return firsts;
  }

  /// First heads of ranges that every addition covers whole or not at all.
  std::vector<int32_t> first_heads(HeadRange heads, const std::vector<Touch>& additions) const {
    std::vector<int32_t> firsts{heads.begin};
    for (const Touch& addition : additions) {
      for (const int32_t cut :
           {pass_.transfers[addition.item].heads.begin, pass_.transfers[addition.item].heads.end}) {
        if (cut < heads.end) firsts.push_back(cut);
      }
    }
    std::sort(firsts.begin(), firsts.end());
    firsts.erase(std::unique(firsts.begin(), firsts.end()), firsts.end());
    return firsts;
  }

  std::vector<int64_t> rows_of(const TransferItem& item) const {
    if (item.to_rows != kAllRows) return expand(plan_.list(item.to_rows));
    const TokenRun all{0, plan_.rows_of(item), 1};
    return expand({&all, 1});
  }

  /// Saves a rounding after which the buffer is only sent.
  void save_sending(BufferId id, const std::vector<Touch>& touches) {
    const auto finish = std::find_if(touches.begin(), touches.end(), [](const Touch& touch) {
      return touch.kind == StageKind::finish;
    });
    if (finish == touches.end() || finish + 1 == touches.end()) return;
    const auto is_sending = [&](const Touch& touch) {
      return touch.kind == StageKind::transfer && pass_.transfers[touch.item].from == id;
    };
    if (!std::all_of(finish + 1, touches.end(), is_sending)) return;
    found_.is_finished[finish->item] = true;
    for (auto touch = finish + 1; touch != touches.end(); ++touch)
      found_.roundings[touch->item].values = true;
  }

  const Plan& plan_;
  const Pass& pass_;
  IdVector<BufferId, std::vector<Touch>> touches_;  // in order of time
  SumSavings found_;
};

}  // namespace

void sum_gradients(LoweredPlan& lowered, const Lowering& /*lowering*/) {
  Pass& pass = lowered.plan.backward;
  std::vector<TransferNote>& notes = lowered.notes.backward.transfers;
  const SumSavings found = SumFinder(lowered.plan, pass).find();
  for (size_t i = 0; i < pass.transfers.size(); ++i) {
    if (found.replaces[i]) pass.transfers[i].landing = Landing::replace;
    notes[i].rounding = found.roundings[i];
  }
  for (const BufferId id : lowered.buffers.ids()) lowered.buffers[id].is_sum = found.is_sum[id];
  keep_items(lowered, Direction::backward, [&](StageKind kind, size_t i) {
    if (kind == StageKind::merge) return !found.is_merged[i];
    return kind != StageKind::finish || !found.is_finished[i];
  });
}

}  // namespace cpscope::kernels
