#include "sim/plan/check/check_rows.h"
#include "sim/plan/visit_items.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// A hash of a compute item; no other sum of items is likely to equal it.
uint64_t fingerprint(int64_t item) {
  uint64_t x = (static_cast<uint64_t>(item) + 1) * 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

/// Shares of dK, dV per KV head interval: weight = fingerprint of the compute item that made the
/// share.
class ShareLedger {
 public:
  explicit ShareLedger(const Plan& plan) : picker_(plan) {}

  void add(RunListId tokens, RunListId rows, HeadRange heads, uint64_t weight) {
    if (weight == 0 || tokens == kNoTokens || heads.size() <= 0) return;
    entries_[std::tuple(heads.begin, heads.end, to_index(tokens), to_index(rows))] += weight;
  }

  /// First (KV token, KV head) whose shares do not cancel, or nothing.
  std::optional<std::pair<int64_t, int32_t>> first_difference() {
    std::vector<Entry> entries;
    std::vector<int32_t> cuts;
    for (const auto& [key, weight] : entries_) {
      if (weight == 0) continue;
      entries.push_back({std::get<0>(key), std::get<1>(key), RunListId{std::get<2>(key)},
                         RunListId{std::get<3>(key)}, weight});
      cuts.push_back(std::get<0>(key));
      cuts.push_back(std::get<1>(key));
    }
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    // Entries are sorted by first head; those that cross a cut stay active.
    std::vector<Entry> active;
    size_t next = 0;
    for (size_t c = 0; c + 1 < cuts.size(); ++c) {
      std::erase_if(active, [&](const Entry& entry) { return entry.end <= cuts[c]; });
      for (; next < entries.size() && entries[next].begin <= cuts[c]; ++next)
        active.push_back(entries[next]);
      std::vector<WeightedRun> runs;
      for (const Entry& entry : active) {
        for (const TokenRun& run : picked(entry)) runs.push_back({run, entry.weight});
      }
      if (const int64_t token = first_unbalanced(runs); token >= 0)
        return std::pair{token, cuts[c]};
    }
    return std::nullopt;
  }

 private:
  struct Entry {
    int32_t begin, end;  // KV heads
    RunListId tokens, rows;
    uint64_t weight;
  };

  const std::vector<TokenRun>& picked(const Entry& entry) {
    auto& list = picked_[{to_index(entry.tokens), to_index(entry.rows)}];
    if (list.empty()) list = picker_.pick(entry.tokens, entry.rows);
    return list;
  }

  RowPicker picker_;
  std::map<std::pair<int32_t, int32_t>, std::vector<TokenRun>> picked_;
  std::map<std::tuple<int32_t, int32_t, int32_t, int32_t>, uint64_t> entries_;
};

/// Follows the sums of dK, dV through merges, hops and reorders.
class ShareWalk {
 public:
  explicit ShareWalk(const Plan& plan) : plan_(plan), ledger_(plan), sums_(plan.buffers.size()) {}

  std::optional<std::pair<int64_t, int32_t>> run() {
    for_each_item(plan_, Direction::backward,
                  [&](const ItemId& id, const auto& item) { follow(id, item); });
    for (const HomeBuffers& home : plan_.home) {
      const BufferSpec& spec = plan_.buffer(home.dkv);
      for (const Share& share : sums_[home.dkv])
        ledger_.add(share.tokens, share.rows, share.whole ? spec.heads : share.heads, share.weight);
    }
    return ledger_.first_difference();
  }

 private:
  struct Share {
    RunListId tokens, rows;  // rows of the list `tokens`
    HeadRange heads;
    bool whole;  // every head of the buffer that holds it
    uint64_t weight;
  };

  void follow(const ItemId& id, const ComputeItem& item) {
    if (item.num_slices == 0) return;
    const HeadRange heads = kv_heads_of(plan_.scenario.attention, item.heads);
    const uint64_t weight = fingerprint(id.index);
    ledger_.add(item.kv_tokens, kAllRows, heads, 0 - weight);
    sums_[item.dkv] = {{item.kv_tokens, kAllRows, heads, false, weight}};
  }

  void follow(const ItemId& /*id*/, const ReorderItem& item) { sums_[item.to] = sums_[item.from]; }

  void follow(const ItemId& /*id*/, const FinishItem& /*item*/) {}

  void follow(const ItemId& /*id*/, const MergeItem& item) {
    if (plan_.buffer(item.into).kind != BufferKind::dkv) return;
    auto& into = sums_[item.into];
    if (item.order == 0) into.clear();
    if (item.partial == kNoBuffer) return;
    auto& partial = sums_[item.partial];
    for (const Share& share : partial) add_share(into, share);
    partial.clear();
  }

  void follow(const ItemId& /*id*/, const TransferItem& item) {
    if (item.payload != Payload::dkv) return;
    auto& to = sums_[item.to];
    const auto& from = sums_[item.from];
    if (item.landing == Landing::replace) {
      to = from;
      return;
    }
    // Only a part of the sender's rows and heads is sent here; its tokens are those of the sender's
    // buffer.
    const BufferSpec& spec = plan_.buffer(item.from);
    uint64_t weight = 0;
    for (const Share& share : from) weight += share.weight;
    add_share(to, {spec.tokens, item.from_rows, item.heads, false, weight});
  }

  static void add_share(std::vector<Share>& sum, const Share& share) {
    for (Share& known : sum) {
      if (known.tokens == share.tokens && known.rows == share.rows && known.heads == share.heads) {
        known.weight += share.weight;
        return;
      }
    }
    sum.push_back(share);
  }

  const Plan& plan_;
  ShareLedger ledger_;
  IdVector<BufferId, std::vector<Share>> sums_;
};

}  // namespace

CheckResult check_gradients(const Plan& plan) {
  if (!plan.scenario.numerics.backward) return passed("gradients", "no backward pass");
  if (const auto difference = ShareWalk(plan).run()) {
    return broken("gradients", fmt::format("the dK, dV shares that reach key token {}, kv head {} "
                                           "are not those that were computed, each once",
                                           difference->first, difference->second));
  }
  return passed("gradients", "every dK, dV share reaches the owner of its rows exactly once");
}

}  // namespace cpscope
