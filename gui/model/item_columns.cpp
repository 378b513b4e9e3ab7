#include "gui/model/item_columns.h"

#include "sim/base/check.h"
#include "sim/base/id_vector.h"
#include "sim/plan/item_uses.h"
#include "sim/plan/visit_items.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace cpscope::gui {
namespace {

int32_t key_of_buffer(const Plan& plan, BufferId id) {
  const BufferSpec& buffer = plan.buffer(id);
  return make_token_key(buffer.tokens, side_of(buffer.kind));
}

/// The list that a transfer carries completely; -1 when it carries a part of a list.
int32_t key_of_transfer(const Plan& plan, const TransferItem& item) {
  const Side side = side_of(item.payload);
  if (item.tokens != kNoTokens) return make_token_key(item.tokens, side);
  if (item.from_rows == kAllRows) return make_token_key(plan.buffer(item.from).tokens, side);
  if (item.to_rows == kAllRows) return make_token_key(plan.buffer(item.to).tokens, side);
  return -1;
}

void count_transfer(StageTraffic& traffic, const TransferItem& item, int64_t index,
                    const std::vector<TransferItem>& all) {
  const bool crosses = item.link != LinkClass::self;
  traffic.bytes += item.bytes;
  traffic.wires += crosses ? 1 : 0;
  for (auto& [payload, example] : traffic.payloads) {
    if (payload != item.payload) continue;
    if (crosses && all[static_cast<size_t>(example)].link == LinkClass::self) example = index;
    return;
  }
  traffic.payloads.emplace_back(item.payload, index);
}

void begin_stage(ItemColumns& columns, const Stage& stage, int32_t number) {
  columns.first_of_stage.push_back(static_cast<int32_t>(stage.begin));
  columns.stage.push_back(number);
}

struct ColumnFiller {
  const Plan& plan;
  const Pass& pass;
  PassColumns& columns;
  IdVector<RankId, int32_t> kv_now;  // key of the keys that the rank computes with in this step

  ItemColumns& of(StageKind kind) { return columns[static_cast<size_t>(kind)]; }

  void add_compute(const ComputeItem& item) {
    ItemColumns& c = of(StageKind::compute);
    const bool works = item.num_slices > 0;
    const int32_t kv = make_token_key(item.kv_tokens, Side::kv);
    c.rank.push_back(to_index(item.rank));
    c.q_key.push_back(works ? make_token_key(item.q_tokens, Side::q) : -1);
    c.key.push_back(works ? kv : -1);
    kv_now[item.rank] = kv;
  }
  void add_transfer(const TransferItem& item) {
    ItemColumns& c = of(StageKind::transfer);
    c.rank.push_back(to_index(item.src));
    c.other_rank.push_back(to_index(item.dst));
    c.key.push_back(key_of_transfer(plan, item));
  }
  void add_local(StageKind kind, RankId rank, BufferId into) {
    ItemColumns& c = of(kind);
    const int32_t key = key_of_buffer(plan, into);
    c.rank.push_back(to_index(rank));
    // A buffer without a list of its own holds the gradient of the rows that the rank has just
    // computed with.
    c.key.push_back(key >= 0 ? key : kv_now[rank]);
  }
  void add_items(const Stage& stage) {
    if (stage.kind == StageKind::transfer && stage.end > stage.begin) {
      StageTraffic traffic;
      for (int64_t i = stage.begin; i < stage.end; ++i)
        count_transfer(traffic, pass.transfers[static_cast<size_t>(i)], i, pass.transfers);
      of(stage.kind).traffic.push_back(std::move(traffic));
    }
    const Overload add{[&](const TransferItem& item) { add_transfer(item); },
                       [&](const ComputeItem& item) { add_compute(item); },
                       [&](const auto& item) {
                         visit_writes(
                             item, [&](BufferId into) { add_local(stage.kind, item.rank, into); });
                       }};
    for (int64_t i = stage.begin; i < stage.end; ++i) visit_item(pass, stage.kind, i, add);
  }
};

/// Items of each stage ordered by rank, then number; empty if they already are in that order.
std::vector<int32_t> sort_by_rank(const std::vector<int32_t>& ranks,
                                  const std::vector<int32_t>& first_of_stage) {
  std::vector<int32_t> order;
  for (size_t s = 0; s < first_of_stage.size(); ++s) {
    const auto begin = static_cast<size_t>(first_of_stage[s]);
    const size_t end =
        s + 1 < first_of_stage.size() ? static_cast<size_t>(first_of_stage[s + 1]) : ranks.size();
    const auto at = [](size_t index) { return static_cast<std::ptrdiff_t>(index); };
    if (std::is_sorted(ranks.begin() + at(begin), ranks.begin() + at(end))) continue;
    if (order.empty()) {
      order.resize(ranks.size());
      std::iota(order.begin(), order.end(), 0);
    }
    // A large stage has far more items than ranks: counting sort instead of comparisons.
    const auto [least, most] =
        std::minmax_element(ranks.begin() + at(begin), ranks.begin() + at(end));
    const int32_t lowest = *least;
    std::vector<int32_t> next(static_cast<size_t>(*most - lowest) + 2, 0);
    for (size_t i = begin; i < end; ++i) ++next[static_cast<size_t>(ranks[i] - lowest) + 1];
    std::partial_sum(next.begin(), next.end(), next.begin());
    for (size_t i = begin; i < end; ++i) {
      int32_t& place = next[static_cast<size_t>(ranks[i] - lowest)];
      order[begin + static_cast<size_t>(place++)] = static_cast<int32_t>(i);
    }
  }
  return order;
}

/// Adds the items of [begin, end), a whole stage, with this rank.
void add_items(const std::vector<int32_t>& ranks, const std::vector<int32_t>& order, int64_t begin,
               int64_t end, int32_t rank, std::vector<int64_t>& items) {
  const auto item_at = [&](int64_t place) {
    return order.empty() ? place : int64_t{order[static_cast<size_t>(place)]};
  };
  int64_t low = begin, high = end;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (ranks[static_cast<size_t>(item_at(middle))] < rank)
      low = middle + 1;
    else
      high = middle;
  }
  for (; low < end && ranks[static_cast<size_t>(item_at(low))] == rank; ++low)
    items.push_back(item_at(low));
}

/// The same of every stage.
std::vector<int64_t> find_all(const std::vector<int32_t>& ranks, const std::vector<int32_t>& order,
                              const std::vector<int32_t>& first_of_stage, int32_t rank) {
  std::vector<int64_t> items;
  for (size_t s = 0; s < first_of_stage.size(); ++s) {
    const int64_t end = s + 1 < first_of_stage.size() ? first_of_stage[s + 1] : std::ssize(ranks);
    add_items(ranks, order, first_of_stage[s], end, rank, items);
  }
  return items;
}

}  // namespace

std::vector<int64_t> ItemColumns::items_of(int64_t begin, int64_t end, int32_t of_rank) const {
  std::vector<int64_t> items;
  add_items(rank, by_rank, begin, end, of_rank, items);
  return items;
}

std::vector<int64_t> ItemColumns::items_to(int64_t begin, int64_t end, int32_t to_rank) const {
  std::vector<int64_t> items;
  add_items(other_rank, by_other_rank, begin, end, to_rank, items);
  return items;
}

std::vector<int64_t> ItemColumns::all_of(int32_t of_rank) const {
  return find_all(rank, by_rank, first_of_stage, of_rank);
}

std::vector<int64_t> ItemColumns::all_to(int32_t to_rank) const {
  return find_all(other_rank, by_other_rank, first_of_stage, to_rank);
}

int32_t ItemColumns::stage_of(int64_t index) const {
  const auto it = std::upper_bound(first_of_stage.begin(), first_of_stage.end(), index);
  CPSCOPE_CHECK(it != first_of_stage.begin(), "no stage has this item", index,
                first_of_stage.size());
  return stage[static_cast<size_t>(it - first_of_stage.begin()) - 1];
}

const StageTraffic* ItemColumns::traffic_of(int64_t first_transfer) const {
  const auto it = std::lower_bound(first_of_stage.begin(), first_of_stage.end(), first_transfer);
  if (it == first_of_stage.end() || *it != first_transfer) return nullptr;
  const auto number = static_cast<size_t>(it - first_of_stage.begin());
  return number < traffic.size() ? &traffic[number] : nullptr;
}

PassColumns make_columns(const Plan& plan, const Pass& pass, int32_t first_stage) {
  PassColumns columns;
  ColumnFiller filler{plan, pass, columns,
                      IdVector<RankId, int32_t>(static_cast<size_t>(plan.layout.cp_size), -1)};
  int32_t number = first_stage;
  for (const Stage& stage : pass.stages) {
    if (stage.end > stage.begin)
      begin_stage(columns[static_cast<size_t>(stage.kind)], stage, number);
    filler.add_items(stage);
    ++number;
  }
  for (ItemColumns& c : columns) {
    c.by_rank = sort_by_rank(c.rank, c.first_of_stage);
    if (!c.other_rank.empty()) c.by_other_rank = sort_by_rank(c.other_rank, c.first_of_stage);
  }
  return columns;
}

std::vector<TokenRun> pick_rows(std::span<const TokenRun> ids, std::span<const TokenRun> rows) {
  std::vector<TokenRun> picked;
  for (const TokenRun& run : rows) {
    if (run.count() == 0) continue;
    if (run.stride == 1) {
      for (const TokenRun& part : slice_rows(ids, run.begin, run.end)) append_run(picked, part);
      continue;
    }
    for (int64_t i = 0; i < run.count(); ++i) {
      for (const TokenRun& part : slice_rows(ids, run.at(i), run.at(i) + 1))
        append_run(picked, part);
    }
  }
  return picked;
}

std::vector<TokenRun> tokens_of(const Plan& plan, const PassColumns& columns, const ItemId& item,
                                Side side) {
  const ItemColumns& c = columns[static_cast<size_t>(item.kind)];
  const auto i = static_cast<size_t>(item.index);
  const Pass& pass = plan.pass(item.direction);
  const auto write_out = [&](RunListId list) {
    const auto runs = plan.list(list);
    return std::vector<TokenRun>(runs.begin(), runs.end());
  };
  if (item.kind == StageKind::compute) {
    const ComputeItem& compute = pass.computes[i];
    return write_out(side == Side::q ? compute.q_tokens : compute.kv_tokens);
  }
  if (c.key[i] >= 0) {
    const RunListId list{c.key[i] / 2};
    return c.key[i] == make_token_key(list, side) ? write_out(list) : std::vector<TokenRun>{};
  }
  if (item.kind != StageKind::transfer) return {};
  const TransferItem& transfer = pass.transfers[i];
  if (side_of(transfer.payload) != side) return {};
  const BufferSpec& from = plan.buffer(transfer.from);
  if (from.tokens != kNoTokens)
    return pick_rows(plan.list(from.tokens), plan.list(transfer.from_rows));
  return pick_rows(plan.list(plan.buffer(transfer.to).tokens), plan.list(transfer.to_rows));
}

}  // namespace cpscope::gui
