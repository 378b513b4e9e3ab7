#include "sim/plan/check/share_sums.h"

#include <algorithm>

namespace cpscope {

uint64_t fingerprint(int64_t item) {
  uint64_t x = (static_cast<uint64_t>(item) + 1) * 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

bool has_token(const Plan& plan, RunListId tokens, RunListId rows, int64_t token) {
  if (tokens == kNoTokens) return false;
  const auto is_in = [](const TokenRun& run, int64_t id) {
    return id >= run.begin && id < run.end && (id - run.begin) % run.stride == 0;
  };
  int64_t first = 0;  // row of the run
  for (const TokenRun& run : plan.list(tokens)) {
    if (is_in(run, token)) {
      if (rows == kAllRows) return true;
      const int64_t row = first + (token - run.begin) / run.stride;
      for (const TokenRun& chosen : plan.list(rows)) {
        if (is_in(chosen, row)) return true;
      }
    }
    first += run.count();
  }
  return false;
}

void ShareLedger::add(const Share& share) {
  if (share.weight == 0 || share.tokens == kNoTokens || share.heads.size() <= 0) return;
  entries_[std::tuple(share.heads.begin, share.heads.end, to_index(share.tokens),
                      to_index(share.rows))] += share.weight;
}

void ShareLedger::drop_balanced_lists() {
  std::vector<WeightedRun> rows;
  for (auto first = entries_.begin(); first != entries_.end();) {
    const auto& [begin, end, tokens, all] = first->first;
    rows.clear();
    auto last = first;
    for (; last != entries_.end(); ++last) {
      const auto& [other_begin, other_end, other_tokens, list] = last->first;
      if (std::tie(other_begin, other_end, other_tokens) != std::tie(begin, end, tokens)) break;
      if (last->second == 0) continue;
      if (RunListId{list} == kAllRows) {
        rows.push_back({{0, plan_.rows(RunListId{tokens}), 1}, last->second});
        continue;
      }
      for (const TokenRun& run : plan_.list(RunListId{list})) rows.push_back({run, last->second});
    }
    first = first_unbalanced(rows) < 0 ? entries_.erase(first, last) : last;
  }
}

bool ShareLedger::cancels_over_heads() {
  int32_t heads = 0;
  for (const auto& [key, weight] : entries_) heads = std::max(heads, std::get<1>(key));
  std::vector<uint64_t> before{0};  // [head + 1] weights of the heads before
  for (int32_t head = 0; head < heads; ++head)
    before.push_back(before.back() + fingerprint(-2 - int64_t{head}));
  std::map<std::pair<int32_t, int32_t>, uint64_t> by_rows;
  for (const auto& [key, weight] : entries_) {
    const auto& [begin, end, tokens, rows] = key;
    by_rows[{tokens, rows}] +=
        weight * (before[static_cast<size_t>(end)] - before[static_cast<size_t>(begin)]);
  }
  std::vector<WeightedRun> runs;
  for (const auto& [list, weight] : by_rows) {
    if (weight == 0) continue;
    for (const TokenRun& run : picked(RunListId{list.first}, RunListId{list.second}))
      runs.push_back({run, weight});
  }
  return first_unbalanced(runs) < 0;
}

std::optional<TokenHead> ShareLedger::first_difference() {
  drop_balanced_lists();
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
  // Where ranks have heads of their own, there are as many intervals as ranks, each of all tokens.
  if (cuts.size() > 2 && cancels_over_heads()) return std::nullopt;
  // Entries are sorted by first head; those that cross a cut stay active.
  std::vector<Entry> active;
  size_t next = 0;
  for (size_t c = 0; c + 1 < cuts.size(); ++c) {
    std::erase_if(active, [&](const Entry& entry) { return entry.end <= cuts[c]; });
    for (; next < entries.size() && entries[next].begin <= cuts[c]; ++next)
      active.push_back(entries[next]);
    std::vector<WeightedRun> runs;
    for (const Entry& entry : active) {
      for (const TokenRun& run : picked(entry.tokens, entry.rows))
        runs.push_back({run, entry.weight});
    }
    if (const int64_t token = first_unbalanced(runs); token >= 0) return TokenHead{token, cuts[c]};
  }
  return std::nullopt;
}

const std::vector<TokenRun>& ShareLedger::picked(RunListId tokens, RunListId rows) {
  auto& list = picked_[{to_index(tokens), to_index(rows)}];
  if (list.empty()) list = picker_.pick(tokens, rows);
  return list;
}

Share ShareSums::share_of(const ComputeItem& item, int64_t index) const {
  const bool is_kv = kind_ == BufferKind::dkv;
  return {is_kv ? item.kv_tokens : item.q_tokens, kAllRows,
          is_kv ? kv_heads_of(plan_.scenario.attention, item.heads) : item.heads,
          fingerprint(index)};
}

void ShareSums::follow(const ItemId& id, const ComputeItem& item) {
  if (item.num_slices == 0) return;
  const Share share = share_of(item, id.index);
  auto& result = sums_[kind_ == BufferKind::dkv  ? item.dkv
                       : kind_ == BufferKind::dq ? item.dq
                                                 : item.out];
  result.clear();
  const bool is_followed =
      !place_ || (share.heads.begin <= place_->head && place_->head < share.heads.end &&
                  has_token(plan_, share.tokens, kAllRows, place_->token));
  if (is_followed) result.push_back(share);
}

void ShareSums::follow(const ItemId& /*id*/, const ReorderItem& item) {
  if (plan_.buffer(item.from).kind == kind_) sums_[item.to] = sums_[item.from];
}

void ShareSums::follow(const ItemId& /*id*/, const FinishItem& /*item*/) {}

void ShareSums::follow(const ItemId& /*id*/, const MergeItem& item) {
  if (plan_.buffer(item.into).kind != kind_) return;
  auto& into = sums_[item.into];
  if (item.order == 0) into.clear();
  if (item.partial == kNoBuffer) return;
  auto& partial = sums_[item.partial];
  for (const Share& share : partial) add_share(into, share);
  partial.clear();
}

void ShareSums::follow(const ItemId& /*id*/, const TransferItem& item) {
  const bool is_lse = what_ == Followed::lse && item.payload == Payload::lse;
  if (kind_of(item.payload) != kind_ && !is_lse) return;
  // What is added keeps the lse of the owner's own addend.
  if (what_ == Followed::lse && item.landing == Landing::add && item.src != item.dst) return;
  const bool adds = item.landing == Landing::add && what_ == Followed::values;
  const BufferSpec &source = plan_.buffer(item.from), &target = plan_.buffer(item.to);
  auto& to = sums_[item.to];
  auto& from = sums_[item.from];
  const bool is_whole = item.from_rows == kAllRows && item.to_rows == kAllRows &&
                        item.heads == source.heads && item.heads == target.heads;
  if (!adds && is_whole) {
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
    if (adds)
      add_share(to, part);
    else
      to.push_back(part);
  }
}

void ShareSums::add_share(std::vector<Share>& sum, const Share& share) const {
  for (Share& known : sum) {
    if (!place_ && known.tokens == share.tokens && known.rows == share.rows &&
        known.heads == share.heads) {
      known.weight += share.weight;
      return;
    }
  }
  sum.push_back(share);
}

}  // namespace cpscope
