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

/// Results per interval of heads: weight = fingerprint of the compute item that made one.
class ShareLedger {
 public:
  explicit ShareLedger(const Plan& plan) : picker_(plan) {}

  void add(RunListId tokens, RunListId rows, HeadRange heads, uint64_t weight) {
    if (weight == 0 || tokens == kNoTokens || heads.size() <= 0) return;
    entries_[std::tuple(heads.begin, heads.end, to_index(tokens), to_index(rows))] += weight;
  }

  /// First (token, head) whose results do not cancel, or nothing.
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
    int32_t begin, end;  // heads
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

/// Follows the sums of one kind of results (out, dq or dkv) through merges, hops and reorders,
/// until they are finished.
class ShareWalk {
 public:
  ShareWalk(const Plan& plan, BufferKind kind)
      : plan_(plan), kind_(kind), ledger_(plan), sums_(plan.buffers.size()) {}

  std::optional<std::pair<int64_t, int32_t>> run() {
    const Direction direction = kind_ == BufferKind::out ? Direction::forward : Direction::backward;
    for_each_item(plan_, direction, [&](const ItemId& id, const auto& item) { follow(id, item); });
    for (const HomeBuffers& home : plan_.home)
      arrive(kind_ == BufferKind::dkv ? home.dkv : kind_ == BufferKind::dq ? home.dq : home.out);
    return ledger_.first_difference();
  }

 private:
  struct Share {
    RunListId tokens, rows;  // rows of the list `tokens`
    HeadRange heads;
    uint64_t weight;
  };

  void arrive(BufferId id) {
    for (const Share& share : sums_[id])
      ledger_.add(share.tokens, share.rows, share.heads, share.weight);
  }

  void follow(const ItemId& id, const ComputeItem& item) {
    if (item.num_slices == 0) return;
    const bool is_kv = kind_ == BufferKind::dkv;
    const HeadRange heads = is_kv ? kv_heads_of(plan_.scenario.attention, item.heads) : item.heads;
    const RunListId tokens = is_kv ? item.kv_tokens : item.q_tokens;
    const BufferId result = is_kv ? item.dkv : kind_ == BufferKind::dq ? item.dq : item.out;
    const uint64_t weight = fingerprint(id.index);
    ledger_.add(tokens, kAllRows, heads, 0 - weight);
    sums_[result] = {{tokens, kAllRows, heads, weight}};
  }

  void follow(const ItemId& /*id*/, const ReorderItem& item) {
    if (plan_.buffer(item.from).kind == kind_) sums_[item.to] = sums_[item.from];
  }

  void follow(const ItemId& /*id*/, const FinishItem& /*item*/) {}

  void follow(const ItemId& /*id*/, const MergeItem& item) {
    if (plan_.buffer(item.into).kind != kind_) return;
    auto& into = sums_[item.into];
    if (item.order == 0) into.clear();
    if (item.partial == kNoBuffer) return;
    auto& partial = sums_[item.partial];
    for (const Share& share : partial) add_share(into, share);
    partial.clear();
  }

  void follow(const ItemId& /*id*/, const TransferItem& item) {
    if (kind_of(item.payload) != kind_) return;
    const BufferSpec &source = plan_.buffer(item.from), &target = plan_.buffer(item.to);
    auto& to = sums_[item.to];
    auto& from = sums_[item.from];
    const bool is_whole = item.from_rows == kAllRows && item.to_rows == kAllRows &&
                          item.heads == source.heads && item.heads == target.heads;
    if (item.landing == Landing::replace && is_whole) {
      to = from;
      if (item.payload == Payload::partial) from.clear();
      return;
    }
    // Only a part of the sender's rows and heads may be sent here. They are rows of the sender's
    // buffer, or, if that holds other rows from time to time, of the tokens that it holds now.
    for (const Share& share : from) {
      const HeadRange heads{std::max(share.heads.begin, item.heads.begin),
                            std::min(share.heads.end, item.heads.end)};
      if (heads.size() <= 0) continue;
      const RunListId tokens = source.tokens == kNoTokens ? share.tokens : source.tokens;
      const Share part{tokens, item.from_rows, heads, share.weight};
      // What replaces rows lands there once, so that no share is met twice.
      if (item.landing == Landing::replace)
        to.push_back(part);
      else
        add_share(to, part);
    }
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
  const BufferKind kind_;
  ShareLedger ledger_;
  IdVector<BufferId, std::vector<Share>> sums_;
};

std::optional<std::string> check_arrivals(const Plan& plan, BufferKind kind) {
  const auto difference = ShareWalk(plan, kind).run();
  if (!difference) return std::nullopt;
  const bool is_kv = kind == BufferKind::dkv;
  return fmt::format(
      "the {} that reach {} token {}, {}head {} are not those that were computed, "
      "each once",
      is_kv                    ? "dK, dV shares"
      : kind == BufferKind::dq ? "partial dQ"
                               : "partial results",
      is_kv ? "key" : "query", difference->first, is_kv ? "kv " : "", difference->second);
}

/// Follows which computes' lse are in the lse by which a rank scales its results. Where they are
/// added, it must be that of all results of these queries, each once.
std::optional<std::string> check_scales(const Plan& plan) {
  IdVector<BufferId, uint64_t> included(plan.buffers.size(), 0);
  std::map<RunListId, uint64_t> all;  // [queries]
  for (size_t i = 0; i < plan.forward.computes.size(); ++i) {
    const ComputeItem& item = plan.forward.computes[i];
    if (item.num_slices > 0) all[item.q_tokens] += fingerprint(static_cast<int64_t>(i));
  }
  std::optional<std::string> complaint;
  for_each_item(
      plan, Direction::forward,
      Overload{[&](const ItemId& id, const ComputeItem& item) {
                 if (item.num_slices > 0) included[item.out] = fingerprint(id.index);
               },
               [&](const ItemId&, const MergeItem& item) {
                 if (item.order == 0) included[item.into] = 0;
                 if (item.partial != kNoBuffer) included[item.into] += included[item.partial];
               },
               [&](const ItemId&, const TransferItem& item) {
                 if (item.payload == Payload::lse) included[item.to] = included[item.from];
                 if (item.payload != Payload::out || item.landing != Landing::add) return;
                 const auto due = all.find(plan.buffer(item.from).tokens);
                 if (!complaint && included[item.from] != (due == all.end() ? 0 : due->second))
                   complaint = fmt::format(
                       "rank {} scales results by another lse than that of all ranks' results",
                       to_index(item.src));
               },
               [](const ItemId&, const auto&) {}});
  return complaint;
}

}  // namespace

CheckResult check_partials(const Plan& plan) {
  if (auto text = check_arrivals(plan, BufferKind::out)) return broken("partials", *text);
  if (adds_scaled_partials(plan.scenario.parallel)) {
    if (auto text = check_scales(plan)) return broken("partials", *text);
  }
  return passed("partials", "every result of a compute reaches the owner of its rows exactly once");
}

CheckResult check_gradients(const Plan& plan) {
  if (!plan.scenario.numerics.backward) return passed("gradients", "no backward pass");
  for (const BufferKind kind : {BufferKind::dkv, BufferKind::dq}) {
    if (auto text = check_arrivals(plan, kind)) return broken("gradients", *text);
  }
  return passed("gradients", "every dQ, dK, dV share reaches the owner of its rows exactly once");
}

}  // namespace cpscope
