#include "kernels/lower/joined_computes.h"

#include "kernels/lower/item_buffers.h"
#include "kernels/lower/landing_savings.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

namespace cpscope::kernels {
namespace {

constexpr int64_t kNoItem = -1;

/// Key rows of a tile of the fused backward.
constexpr int64_t kBackwardTileRows = 128;

size_t kind_place(StageKind kind) { return static_cast<size_t>(kind); }

/// A rank's compute items of one pass: one with its own keys and values, one with received ones.
struct Halves {
  int64_t own = kNoItem, received = kNoItem;

  bool is_pair() const { return received != kNoItem; }
};

/// Consecutive received rows, and their place after a rank's own rows.
struct ReceivedRows {
  int64_t from = 0, count = 0, to = 0;
};

/// Places received rows at the begin of a tile, and not adjacent to own rows: keys that a row sees
/// on both sides of the border would form one range, and so be in another range set than those of
/// rows that see less (TileList). The same holds for rows whose token does not follow the token
/// before, usually the next document: with a tile of both documents, the CTAs of both would wait
/// for each other. If there are many short stretches, they stay together.
std::vector<ReceivedRows> place_received(std::span<const TokenRun> tokens, int64_t own_rows) {
  const auto next_tile = [](int64_t row) {
    return (row / kBackwardTileRows + 1) * kBackwardTileRows;
  };
  const int64_t rows = count_ids(tokens);
  if (static_cast<int64_t>(tokens.size()) * kBackwardTileRows > rows)
    return {{0, rows, next_tile(own_rows)}};
  std::vector<ReceivedRows> stretches;
  int64_t from = 0, to = own_rows;
  for (const TokenRun& run : tokens) {
    stretches.push_back({from, run.count(), next_tile(to)});
    from += run.count();
    to = stretches.back().to + run.count();
  }
  return stretches;
}

/// Place of a buffer that is appended to another one, and its rank.
struct Place {
  BufferId buffer = kNoBuffer;
  size_t rank = 0;
};

class Joiner {
 public:
  Joiner(const Plan& plan, const std::function<bool(const ComputeItem&)>& can_join)
      : plan_(plan), can_join_(can_join), places_(plan.buffers.size()) {}

  std::optional<JoinedPlan> join() {
    const bool has_backward = !plan_.backward.stages.empty();
    for (const bool is_backward : {false, true}) {
      if (is_backward && !has_backward) break;
      if (!find_halves(is_backward)) return std::nullopt;
    }
    const auto is_pair = [](const Halves& halves) { return halves.is_pair(); };
    if (std::none_of(halves_[0].begin(), halves_[0].end(), is_pair)) return std::nullopt;
    joined_.plan = plan_;
    stretches_.resize(plan_.home.size());
    for (size_t r = 0; r < plan_.home.size(); ++r) {
      if (has_backward && halves_[0][r].is_pair() != halves_[1][r].is_pair()) return std::nullopt;
      if (halves_[0][r].is_pair() && !place_rows(r, has_backward)) return std::nullopt;
    }
    if (has_backward) find_kept_gradients();
    if (!may_join(false) || (has_backward && !may_join(true))) return std::nullopt;
    rebuild(false);
    if (has_backward) rebuild(true);
    return std::move(joined_);
  }

 private:
  const Pass& pass(bool is_backward) const { return is_backward ? plan_.backward : plan_.forward; }
  const ComputeItem& compute(bool is_backward, int64_t item) const {
    return pass(is_backward).computes[static_cast<size_t>(item)];
  }
  const BufferSpec& buffer(BufferId id) const { return plan_.buffer(id); }

  /// True if every rank has one item in the pass, or two that can be joined.
  bool find_halves(bool is_backward) {
    const Pass& of = pass(is_backward);
    std::vector<Halves>& halves = halves_[is_backward ? 1 : 0];
    halves.assign(plan_.home.size(), {});
    const auto stages = std::count_if(of.stages.begin(), of.stages.end(), [](const Stage& stage) {
      return stage.kind == StageKind::compute;
    });
    if (stages != 1) return false;
    for (size_t i = 0; i < of.computes.size(); ++i) {
      Halves& here = halves[static_cast<size_t>(to_index(of.computes[i].rank))];
      if (here.is_pair()) return false;
      (here.own == kNoItem ? here.own : here.received) = static_cast<int64_t>(i);
    }
    return std::all_of(halves.begin(), halves.end(), [&](const Halves& here) {
      return here.own != kNoItem &&
             (!here.is_pair() ||
              are_alike(compute(is_backward, here.own), compute(is_backward, here.received)));
    });
  }

  /// True if two items can be joined. Received keys and values are visible to some query; otherwise
  /// they would not have been sent.
  bool are_alike(const ComputeItem& own, const ComputeItem& received) const {
    return own.q == received.q && own.q_tokens == received.q_tokens &&
           own.heads == received.heads && own.d_out == received.d_out && own.kv != received.kv &&
           received.num_slices > 0 && can_join_(received) &&
           (own.num_slices == 0 || can_join_(own)) &&
           own.kv == plan_.home[static_cast<size_t>(to_index(own.rank))].kv &&
           buffer(received.kv).role == BufferRole::received &&
           buffer(own.kv).heads == buffer(received.kv).heads &&
           buffer(own.kv).rows == plan_.rows(own.kv_tokens) &&
           buffer(received.kv).rows == plan_.rows(received.kv_tokens);
  }

  bool place_rows(size_t rank, bool has_backward) {
    const Halves& forward = halves_[0][rank];
    const ComputeItem &own = compute(false, forward.own),
                      &received = compute(false, forward.received);
    stretches_[rank] = place_received(plan_.list(received.kv_tokens), buffer(own.kv).rows);
    append(received.kv, own.kv, rank);
    if (!has_backward) return true;
    const Halves& backward = halves_[1][rank];
    const ComputeItem &d_own = compute(true, backward.own),
                      &d_received = compute(true, backward.received);
    if (d_own.kv != own.kv || d_received.kv != received.kv) return false;
    // The accumulator of received rows holds only their partial.
    BufferId sum = kNoBuffer;
    for (const MergeItem& item : plan_.backward.merges) {
      if (item.partial != d_received.dkv) continue;
      if (sum != kNoBuffer || item.order != 0) return false;
      sum = item.into;
    }
    if (sum == kNoBuffer || buffer(sum).rows != buffer(received.kv).rows ||
        buffer(d_received.dkv).rows != buffer(received.kv).rows ||
        buffer(d_own.dkv).rows != buffer(own.kv).rows)
      return false;
    append(d_received.dkv, d_own.dkv, rank);
    places_[place_of(sum)] = places_[place_of(d_received.dkv)];
    return true;
  }

  /// Places the rows of `second` after those of `first`.
  void append(BufferId second, BufferId first, size_t rank) {
    places_[place_of(second)] = {first, rank};
    const ReceivedRows& last = stretches_[rank].back();
    joined_.plan.buffers[place_of(first)].rows = last.to + last.count;
  }

  bool is_placed(BufferId id) const {
    return id != kNoBuffer && places_[place_of(id)].buffer != kNoBuffer;
  }

  /// Finds the ranks whose own gradients become a share like those of other ranks: ranks with
  /// joined items, and ranks to whose gradients others are added.
  void find_kept_gradients() {
    keeps_.assign(plan_.home.size(), false);
    for (size_t r = 0; r < plan_.home.size(); ++r) {
      const ComputeItem& own = compute(true, halves_[1][r].own);
      const BufferId home = plan_.home[r].dkv;
      const auto is_addition = [&](const TransferItem& item) {
        return item.to == home && item.landing == Landing::add;
      };
      const bool adds = std::any_of(plan_.backward.transfers.begin(),
                                    plan_.backward.transfers.end(), is_addition);
      keeps_[r] = halves_[1][r].is_pair() || (adds && own.num_slices > 0);
    }
  }

  /// True if the items use the joined buffers only as group_cast does.
  bool may_join(bool is_backward) const {
    const Pass& of = pass(is_backward);
    for (const TransferItem& item : of.transfers) {
      if (is_placed(item.to) && item.landing == Landing::add) return false;
      if (is_placed(item.from) && item.payload != Payload::dkv) return false;
    }
    for (size_t i = 0; i < of.reorders.size(); ++i) {
      bool touches = false;
      visit_buffers(of, StageKind::reorder, i, [&](BufferId id) { touches |= is_placed(id); });
      if (touches) return false;
    }
    for (const FinishItem& item : of.finishes) {
      if (is_placed(item.buffer)) return false;
    }
    if (!is_backward) return true;
    // Own gradients are merged home once, and are sent in a later stage of transfers.
    for (size_t r = 0; r < keeps_.size(); ++r) {
      if (!keeps_[r]) continue;
      const BufferId home = plan_.home[r].dkv;
      const auto merges = std::count_if(of.merges.begin(), of.merges.end(),
                                        [&](const MergeItem& item) { return item.into == home; });
      if (merges != 1) return false;
    }
    return stage_of_sums() < of.stages.size();
  }

  /// The stage that sends gradients of keys and values home.
  size_t stage_of_sums() const {
    const std::vector<Stage>& stages = plan_.backward.stages;
    for (size_t s = 0; s < stages.size(); ++s) {
      if (stages[s].kind != StageKind::transfer) continue;
      for (int64_t i = stages[s].begin; i < stages[s].end; ++i) {
        if (plan_.backward.transfers[static_cast<size_t>(i)].payload == Payload::dkv) return s;
      }
    }
    return stages.size();
  }

  RunListId add_list(const std::vector<TokenRun>& runs) {
    Plan& plan = joined_.plan;
    plan.run_lists.push_back({static_cast<int64_t>(plan.runs.size()),
                              static_cast<int64_t>(runs.size()), count_ids(runs)});
    plan.runs.insert(plan.runs.end(), runs.begin(), runs.end());
    return RunListId{static_cast<int32_t>(plan.run_lists.size()) - 1};
  }

  /// Rows of a buffer that a transfer names, as an explicit list of all rows, because other rows
  /// may follow them in the joined buffer. rank: set if they are received rows, of this rank.
  RunListId named(RunListId rows, int64_t count, std::optional<size_t> rank) {
    const int64_t of = rank ? static_cast<int64_t>(*rank) : kNoItem;
    const auto [entry, is_new] =
        named_.try_emplace({to_index(rows), rows == kAllRows ? count : 0, of});
    if (!is_new) return entry->second;
    const TokenRun all{0, count, 1};
    const std::span<const TokenRun> runs = runs_of_rows(plan_, rows, all);
    return entry->second =
               add_list(rank ? moved(runs, *rank) : std::vector(runs.begin(), runs.end()));
  }

  std::vector<TokenRun> moved(std::span<const TokenRun> received, size_t rank) const {
    std::vector<int64_t> rows = expand(received);
    for (int64_t& row : rows) {
      const auto after =
          std::upper_bound(stretches_[rank].begin(), stretches_[rank].end(), row,
                           [](int64_t r, const ReceivedRows& stretch) { return r < stretch.from; });
      row += (after - 1)->to - (after - 1)->from;
    }
    return runs_of(rows);
  }

  void rebuild(bool is_backward) {
    const Pass& of = pass(is_backward);
    to_ = is_backward ? &joined_.plan.backward : &joined_.plan.forward;
    items_ = &joined_.items[is_backward ? 1 : 0];
    parts_ = &joined_.parts[is_backward ? 1 : 0];
    *to_ = {};
    to_->num_steps = of.num_steps;
    const size_t sums = is_backward ? stage_of_sums() : of.stages.size();
    for (size_t s = 0; s < of.stages.size(); ++s) {
      const Stage& stage = of.stages[s];
      const auto begin = static_cast<int64_t>((*items_)[kind_place(stage.kind)].size());
      if (s == sums) keep_gradients(stage.step);
      for (int64_t i = stage.begin; i < stage.end; ++i) add(is_backward, stage.kind, i);
      const auto end = static_cast<int64_t>((*items_)[kind_place(stage.kind)].size());
      if (end > begin) to_->stages.push_back({stage.step, stage.kind, begin, end});
    }
  }

  void note(StageKind kind, int64_t origin) { (*items_)[kind_place(kind)].push_back(origin); }

  void add(bool is_backward, StageKind kind, int64_t i) {
    const Pass& of = pass(is_backward);
    const auto item = static_cast<size_t>(i);
    switch (kind) {
      case StageKind::transfer:
        return add_transfer(of.transfers[item], i);
      case StageKind::compute:
        return add_compute(is_backward, i);
      case StageKind::merge:
        return add_merge(is_backward, i);
      case StageKind::reorder:
        to_->reorders.push_back(of.reorders[item]);
        break;
      case StageKind::finish:
        to_->finishes.push_back(of.finishes[item]);
        break;
    }
    note(kind, i);
  }

  void add_transfer(TransferItem item, int64_t origin) {
    const int64_t count = num_rows_of(plan_, item);
    const auto place = [&](BufferId& id, RunListId& rows) {
      if (is_placed(id)) {
        rows = named(rows, count, places_[place_of(id)].rank);
        id = places_[place_of(id)].buffer;
      } else if (joined_.plan.buffer(id).rows != buffer(id).rows) {
        rows = named(rows, count, std::nullopt);
      }
    };
    place(item.from, item.from_rows);
    place(item.to, item.to_rows);
    to_->transfers.push_back(item);
    note(StageKind::transfer, origin);
  }

  /// Adds the transfers of each rank's own gradients of keys and values, which go home first.
  void keep_gradients(StepId step) {
    for (size_t r = 0; r < keeps_.size(); ++r) {
      if (!keeps_[r]) continue;
      const ComputeItem& own = compute(true, halves_[1][r].own);
      TransferItem item;
      item.step = step;
      item.src = item.dst = own.rank;
      item.from = own.dkv;
      item.to = plan_.home[r].dkv;
      item.from_rows = named(kAllRows, buffer(own.dkv).rows, std::nullopt);
      item.heads = kv_heads_of(plan_.scenario.attention, own.heads);
      item.payload = Payload::dkv;
      item.link = LinkClass::self;
      item.landing = Landing::add;
      to_->transfers.push_back(item);
      note(StageKind::transfer, kNoItem);
    }
  }

  void add_compute(bool is_backward, int64_t i) {
    ComputeItem item = compute(is_backward, i);
    const Halves& halves = halves_[is_backward ? 1 : 0][static_cast<size_t>(to_index(item.rank))];
    if (i == halves.received) return;
    const TokenRun own_rows{0, plan_.rows(item.kv_tokens), 1};
    std::vector<JoinedPart> parts;
    if (item.num_slices > 0) parts.push_back({i, item.visible_pairs, {own_rows}});
    if (halves.is_pair()) {
      const ComputeItem& received = compute(is_backward, halves.received);
      const auto rank = static_cast<size_t>(to_index(item.rank));
      const TokenRun all{0, plan_.rows(received.kv_tokens), 1};
      parts.push_back({halves.received, received.visible_pairs, moved({&all, 1}, rank)});
      item.kv_tokens = joined_tokens(item.kv_tokens, received.kv_tokens, rank);
      add_slices(item, received, rank);
    }
    to_->computes.push_back(item);
    parts_->push_back(std::move(parts));
    note(StageKind::compute, i);
  }

  /// The rows in between have no token and are not visible; the list contains their number.
  RunListId joined_tokens(RunListId own, RunListId received, size_t rank) {
    const auto first = plan_.list(own);
    std::vector<TokenRun> tokens(first.begin(), first.end());
    int64_t row = plan_.rows(own);
    for (const ReceivedRows& stretch : stretches_[rank]) {
      tokens.push_back({0, stretch.to - row, 1});
      const auto part =
          slice_rows(plan_.list(received), stretch.from, stretch.from + stretch.count);
      tokens.insert(tokens.end(), part.begin(), part.end());
      row = stretch.to + stretch.count;
    }
    return add_list(tokens);
  }

  void add_slices(ComputeItem& item, const ComputeItem& received, size_t rank) {
    std::vector<BandSlice>& slices = joined_.plan.slices;
    const auto own = plan_.slices_of(item), others = plan_.slices_of(received);
    item.first_slice = static_cast<int64_t>(slices.size());
    item.visible_pairs += received.visible_pairs;
    slices.insert(slices.end(), own.begin(), own.end());
    for (const BandSlice& slice : others) {
      for (const ReceivedRows& stretch : stretches_[rank]) {
        const int64_t begin = std::max<int64_t>(slice.k0, stretch.from);
        const int64_t end = std::min<int64_t>(slice.k1, stretch.from + stretch.count);
        if (begin >= end) continue;
        // The diagonals of a slice count from its first column.
        const auto skipped = static_cast<int32_t>(begin - slice.k0);
        const auto first = static_cast<int32_t>(begin + stretch.to - stretch.from);
        slices.push_back({slice.q0, slice.q1, first, first + static_cast<int32_t>(end - begin),
                          slice.lo - skipped, slice.hi - skipped});
      }
    }
    item.num_slices = static_cast<int64_t>(slices.size()) - item.first_slice;
  }

  /// Adds a merge. Of the two partials one is left, for both.
  void add_merge(bool is_backward, int64_t i) {
    MergeItem item = pass(is_backward).merges[static_cast<size_t>(i)];
    if (is_placed(item.into)) return;  // received gradients are sent from their place
    const auto rank = static_cast<size_t>(to_index(item.rank));
    const Halves& halves = halves_[is_backward ? 1 : 0][rank];
    if (is_backward && item.into == plan_.home[rank].dkv) {
      if (keeps_[rank]) item.partial = kNoBuffer;
    } else if (halves.is_pair()) {
      const ComputeItem &own = compute(is_backward, halves.own),
                        &received = compute(is_backward, halves.received);
      const BufferId of_received = is_backward ? received.dq : received.out;
      if (item.partial == of_received) {
        if (item.order > 0) return;
        item.partial = is_backward ? own.dq : own.out;
      }
    }
    to_->merges.push_back(item);
    note(StageKind::merge, i);
  }

  const Plan& plan_;
  const std::function<bool(const ComputeItem&)>& can_join_;
  std::array<std::vector<Halves>, 2> halves_;         // [direction][rank]
  std::vector<Place> places_;                         // [buffer] kNoBuffer: not moved
  std::vector<bool> keeps_;                           // [rank] its own gradients become a share
  std::vector<std::vector<ReceivedRows>> stretches_;  // [rank] of received rows
  std::map<std::array<int64_t, 3>, RunListId> named_;
  JoinedPlan joined_;
  Pass* to_ = nullptr;
  std::array<std::vector<int64_t>, 5>* items_ = nullptr;
  std::vector<std::vector<JoinedPart>>* parts_ = nullptr;
};

}  // namespace

std::optional<JoinedPlan> join_computes(const Plan& plan,
                                        const std::function<bool(const ComputeItem&)>& can_join) {
  return Joiner(plan, can_join).join();
}

}  // namespace cpscope::kernels
