#include "kernels/lower/landing_savings.h"

#include "kernels/lower/item_buffers.h"

#include <algorithm>
#include <optional>

namespace cpscope::kernels {
namespace {

/// An item that touches a buffer.
struct Touch {
  StageKind kind{};
  size_t item = 0;
};

class LandingFinder {
 public:
  LandingFinder(const Plan& plan, const Pass& pass, const std::vector<TransferItem>& transfers,
                const std::vector<ReorderSaving>& reorders)
      : plan_(plan),
        pass_(pass),
        transfers_(transfers),
        reorders_(reorders),
        touches_(plan.buffers.size()) {
    found_.replaces.assign(transfers.size(), false);
    found_.roundings.assign(transfers.size(), {});
    found_.is_merged.assign(pass.merges.size(), false);
    found_.is_finished.assign(pass.finishes.size(), false);
    found_.is_sum.assign(plan.buffers.size(), false);
  }

  LandingSavings find() {
    for (const Stage& stage : pass_.stages) {
      for (int64_t i = stage.begin; i < stage.end; ++i)
        collect({stage.kind, static_cast<size_t>(i)});
    }
    std::vector<bool> is_home(plan_.buffers.size(), false);
    for (const HomeBuffers& home : plan_.home) {
      for (const BufferId id : {home.dq, home.dkv}) {
        if (id != kNoBuffer) is_home[static_cast<size_t>(to_index(id))] = true;
      }
    }
    for (size_t b = 0; b < touches_.size(); ++b) {
      const BufferSpec& spec = plan_.buffers[b];
      if (spec.kind != BufferKind::dq && spec.kind != BufferKind::dkv) continue;
      found_.is_sum[b] = is_sum(BufferId{static_cast<int32_t>(b)}, touches_[b]);
      if (found_.is_sum[b]) save_sum(BufferId{static_cast<int32_t>(b)}, touches_[b]);
      if (!is_home[b]) save_sending(BufferId{static_cast<int32_t>(b)}, touches_[b]);
    }
    return std::move(found_);
  }

 private:
  void collect(const Touch& touch) {
    const auto note = [&](BufferId id) {
      touches_[static_cast<size_t>(to_index(id))].push_back(touch);
    };
    if (touch.kind == StageKind::transfer) return visit_buffers(transfers_[touch.item], note);
    const bool is_saved =
        touch.kind == StageKind::reorder && reorders_[touch.item] != ReorderSaving::none;
    if (!is_saved) visit_buffers(pass_, touch.kind, touch.item, note);
  }

  bool is_addition(BufferId to, const Touch& touch) const {
    return touch.kind == StageKind::transfer && transfers_[touch.item].to == to &&
           transfers_[touch.item].landing == Landing::add;
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
      const TransferItem& item = transfers_[addition.item];
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
           {transfers_[addition.item].heads.begin, transfers_[addition.item].heads.end}) {
        if (cut < heads.end) firsts.push_back(cut);
      }
    }
    std::sort(firsts.begin(), firsts.end());
    firsts.erase(std::unique(firsts.begin(), firsts.end()), firsts.end());
    return firsts;
  }

  std::vector<int64_t> rows_of(const TransferItem& item) const {
    if (item.to_rows != kAllRows) return expand(plan_.list(item.to_rows));
    const TokenRun all{0, num_rows_of(plan_, item), 1};
    return expand({&all, 1});
  }

  /// Saves a rounding after which the buffer is only sent.
  void save_sending(BufferId id, const std::vector<Touch>& touches) {
    const auto finish = std::find_if(touches.begin(), touches.end(), [](const Touch& touch) {
      return touch.kind == StageKind::finish;
    });
    if (finish == touches.end() || finish + 1 == touches.end()) return;
    const auto is_sending = [&](const Touch& touch) {
      return touch.kind == StageKind::transfer && transfers_[touch.item].from == id;
    };
    if (!std::all_of(finish + 1, touches.end(), is_sending)) return;
    found_.is_finished[finish->item] = true;
    for (auto touch = finish + 1; touch != touches.end(); ++touch)
      found_.roundings[touch->item].values = true;
  }

  const Plan& plan_;
  const Pass& pass_;
  const std::vector<TransferItem>& transfers_;
  const std::vector<ReorderSaving>& reorders_;
  std::vector<std::vector<Touch>> touches_;  // [buffer] in order of time
  LandingSavings found_;
};

}  // namespace

LandingSavings find_landing_savings(const Plan& plan, const Pass& pass,
                                    const std::vector<TransferItem>& transfers,
                                    const std::vector<ReorderSaving>& reorders) {
  return LandingFinder(plan, pass, transfers, reorders).find();
}

int64_t num_rows_of(const Plan& plan, const TransferItem& item) {
  if (item.from_rows != kAllRows) return plan.rows(item.from_rows);
  if (item.tokens != kNoTokens) return plan.rows(item.tokens);
  return plan.buffer(item.from).rows;
}

}  // namespace cpscope::kernels
