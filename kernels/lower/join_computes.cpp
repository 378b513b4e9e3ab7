#include "kernels/lower/pass_writer.h"
#include "kernels/lower/passes.h"
#include "sim/plan/item_uses.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>
#include <utility>

namespace cpscope::kernels {
namespace {

constexpr int64_t kNoItem = -1;

/// Key rows of a tile of the fused backward.
constexpr int64_t kBackwardTileRows = 128;

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
  RankId rank{};
};

class Joiner {
 public:
  Joiner(const LoweredPlan& lowered, const AskKernel& can_join)
      : plan_(lowered.plan),
        can_join_(can_join),
        places_(plan_.buffers.size()),
        stretches_(plan_.home.size()),
        joined_(lowered) {}

  std::optional<LoweredPlan> join() {
    std::vector<Direction> directions{Direction::forward};
    if (!plan_.backward.stages.empty()) directions.push_back(Direction::backward);
    for (const Direction direction : directions) {
      if (!find_halves(direction)) return std::nullopt;
    }
    const auto is_pair = [](const Halves& halves) { return halves.is_pair(); };
    if (std::none_of(halves_.forward.begin(), halves_.forward.end(), is_pair)) return std::nullopt;
    const bool has_backward = directions.size() == 2;
    for (const RankId rank : plan_.home.ids()) {
      const bool joins = halves_.forward[rank].is_pair();
      if (has_backward && joins != halves_.backward[rank].is_pair()) return std::nullopt;
      if (joins && !place_rows(rank, has_backward)) return std::nullopt;
    }
    if (has_backward) find_kept_gradients();
    for (const Direction direction : directions) {
      if (!may_join(direction)) return std::nullopt;
    }
    for (const Direction direction : directions) rebuild(direction);
    return std::move(joined_);
  }

 private:
  const ComputeItem& compute(Direction direction, int64_t item) const {
    return plan_.pass(direction).computes[static_cast<size_t>(item)];
  }
  const BufferSpec& buffer(BufferId id) const { return plan_.buffer(id); }

  /// True if every rank has one item in the pass, or two that can be joined.
  bool find_halves(Direction direction) {
    const Pass& of = plan_.pass(direction);
    IdVector<RankId, Halves>& halves = halves_[direction];
    halves.resize(plan_.home.size());
    const auto stages = std::count_if(of.stages.begin(), of.stages.end(), [](const Stage& stage) {
      return stage.kind == StageKind::compute;
    });
    if (stages != 1) return false;
    for (size_t i = 0; i < of.computes.size(); ++i) {
      Halves& here = halves[of.computes[i].rank];
      if (here.is_pair()) return false;
      (here.own == kNoItem ? here.own : here.received) = static_cast<int64_t>(i);
    }
    return std::all_of(halves.begin(), halves.end(), [&](const Halves& here) {
      return here.own != kNoItem &&
             (!here.is_pair() ||
              are_alike(compute(direction, here.own), compute(direction, here.received)));
    });
  }

  /// True if two items can be joined. Received keys and values are visible to some query; otherwise
  /// they would not have been sent.
  bool are_alike(const ComputeItem& own, const ComputeItem& received) const {
    return own.q == received.q && own.q_tokens == received.q_tokens &&
           own.heads == received.heads && own.d_out == received.d_out && own.kv != received.kv &&
           received.num_slices > 0 && can_join_(received) &&
           (own.num_slices == 0 || can_join_(own)) && own.kv == plan_.home[own.rank].kv &&
           buffer(received.kv).role == BufferRole::received &&
           buffer(own.kv).heads == buffer(received.kv).heads &&
           buffer(own.kv).rows == plan_.rows(own.kv_tokens) &&
           buffer(received.kv).rows == plan_.rows(received.kv_tokens);
  }

  bool place_rows(RankId rank, bool has_backward) {
    const Halves& forward = halves_.forward[rank];
    const ComputeItem &own = compute(Direction::forward, forward.own),
                      &received = compute(Direction::forward, forward.received);
    stretches_[rank] = place_received(plan_.list(received.kv_tokens), buffer(own.kv).rows);
    append(received.kv, own.kv, rank);
    if (!has_backward) return true;
    const Halves& backward = halves_.backward[rank];
    const ComputeItem &d_own = compute(Direction::backward, backward.own),
                      &d_received = compute(Direction::backward, backward.received);
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
    places_[sum] = places_[d_received.dkv];
    return true;
  }

  /// Places the rows of `second` after those of `first`.
  void append(BufferId second, BufferId first, RankId rank) {
    places_[second] = {first, rank};
    const ReceivedRows& last = stretches_[rank].back();
    joined_.plan.buffers[first].rows = last.to + last.count;
  }

  bool is_placed(BufferId id) const { return id != kNoBuffer && places_[id].buffer != kNoBuffer; }

  /// Finds the ranks whose own gradients become a share like those of other ranks: ranks with
  /// joined items, and ranks to whose gradients others are added.
  void find_kept_gradients() {
    keeps_.assign(plan_.home.size(), false);
    for (const RankId rank : plan_.home.ids()) {
      const ComputeItem& own = compute(Direction::backward, halves_.backward[rank].own);
      const BufferId home = plan_.home[rank].dkv;
      const auto is_addition = [&](const TransferItem& item) {
        return item.to == home && item.landing == Landing::add;
      };
      const bool adds = std::any_of(plan_.backward.transfers.begin(),
                                    plan_.backward.transfers.end(), is_addition);
      keeps_[rank] = halves_.backward[rank].is_pair() || (adds && own.num_slices > 0);
    }
  }

  /// True if the items use the joined buffers only as group_cast does.
  bool may_join(Direction direction) const {
    const Pass& of = plan_.pass(direction);
    for (const TransferItem& item : of.transfers) {
      if (is_placed(item.to) && item.landing == Landing::add) return false;
      if (is_placed(item.from) && item.payload != Payload::dkv) return false;
    }
    for (const ReorderItem& item : of.reorders) {
      if (is_placed(item.from) || is_placed(item.to)) return false;
    }
    for (const FinishItem& item : of.finishes) {
      if (is_placed(item.buffer)) return false;
    }
    if (direction == Direction::forward) return true;
    // Own gradients are merged home once, and are sent in a later stage of transfers.
    for (const RankId rank : keeps_.ids()) {
      if (!keeps_[rank]) continue;
      const BufferId home = plan_.home[rank].dkv;
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

  /// Rows of a buffer that a transfer names, as an explicit list of all rows, because other rows
  /// may follow them in the joined buffer. rank: set if they are received rows, of this rank.
  RunListId named(RunListId rows, int64_t count, std::optional<RankId> rank) {
    const int64_t of = rank ? to_index(*rank) : kNoItem;
    const auto [entry, is_new] =
        named_.try_emplace({to_index(rows), rows == kAllRows ? count : 0, of});
    if (!is_new) return entry->second;
    const TokenRun all{0, count, 1};
    const std::span<const TokenRun> runs = runs_of_rows(plan_, rows, all);
    return entry->second = add_list(
               joined_.plan, rank ? moved(runs, *rank) : std::vector(runs.begin(), runs.end()));
  }

  std::vector<TokenRun> moved(std::span<const TokenRun> received, RankId rank) const {
    std::vector<int64_t> rows = expand(received);
    for (int64_t& row : rows) {
      const auto after =
          std::upper_bound(stretches_[rank].begin(), stretches_[rank].end(), row,
                           [](int64_t r, const ReceivedRows& stretch) { return r < stretch.from; });
      row += (after - 1)->to - (after - 1)->from;
    }
    return runs_of(rows);
  }

  void rebuild(Direction direction) {
    PassWriter writer(joined_, direction);
    const std::vector<Stage>& stages = writer.from().stages;
    const size_t sums = direction == Direction::backward ? stage_of_sums() : stages.size();
    for (size_t s = 0; s < stages.size(); ++s) {
      const Stage& stage = stages[s];
      writer.open(stage.step, stage.kind);
      if (s == sums) keep_gradients(stage.step, writer);
      for (int64_t i = stage.begin; i < stage.end; ++i) add(direction, stage.kind, i, writer);
      writer.close();
    }
  }

  void add(Direction direction, StageKind kind, int64_t item, PassWriter& writer) {
    switch (kind) {
      case StageKind::transfer:
        return add_transfer(item, writer);
      case StageKind::compute:
        return add_compute(direction, item, writer);
      case StageKind::merge:
        return add_merge(direction, item, writer);
      case StageKind::reorder:
      case StageKind::finish:
        return writer.copy(kind, item);
    }
  }

  void add_transfer(int64_t index, PassWriter& writer) {
    TransferItem item = writer.from().transfers[static_cast<size_t>(index)];
    const int64_t count = plan_.rows_of(item);
    const auto place = [&](BufferId& id, RunListId& rows) {
      if (is_placed(id)) {
        rows = named(rows, count, places_[id].rank);
        id = places_[id].buffer;
      } else if (joined_.plan.buffer(id).rows != buffer(id).rows) {
        rows = named(rows, count, std::nullopt);
      }
    };
    place(item.from, item.from_rows);
    place(item.to, item.to_rows);
    writer.add(item, writer.notes().transfers[static_cast<size_t>(index)]);
  }

  /// Adds the transfers of each rank's own gradients of keys and values, which go home first.
  void keep_gradients(StepId step, PassWriter& writer) {
    for (const RankId rank : keeps_.ids()) {
      if (!keeps_[rank]) continue;
      const ComputeItem& own = compute(Direction::backward, halves_.backward[rank].own);
      TransferItem item;
      item.step = step;
      item.src = item.dst = own.rank;
      item.from = own.dkv;
      item.to = plan_.home[rank].dkv;
      item.from_rows = named(kAllRows, buffer(own.dkv).rows, std::nullopt);
      item.heads = kv_heads_of(plan_.scenario.attention, own.heads);
      item.payload = Payload::dkv;
      item.link = LinkClass::self;
      item.landing = Landing::add;
      writer.add(item, TransferNote{});
    }
  }

  void add_compute(Direction direction, int64_t index, PassWriter& writer) {
    ComputeItem item = compute(direction, index);
    ComputeNote note = writer.notes().computes[static_cast<size_t>(index)];
    const Halves& halves = halves_[direction][item.rank];
    if (index == halves.received) return;
    if (halves.is_pair()) {
      const ComputeItem& received = compute(direction, halves.received);
      const TokenRun own_rows{0, plan_.rows(item.kv_tokens), 1};
      const TokenRun all{0, plan_.rows(received.kv_tokens), 1};
      if (item.num_slices > 0) note.parts.push_back({index, item.visible_pairs, {own_rows}});
      note.parts.push_back({halves.received, received.visible_pairs, moved({&all, 1}, item.rank)});
      item.kv_tokens = joined_tokens(item.kv_tokens, received.kv_tokens, item.rank);
      add_slices(item, received);
    }
    writer.add(item, note);
  }

  /// The rows in between have no token and are not visible; the list contains their number.
  RunListId joined_tokens(RunListId own, RunListId received, RankId rank) {
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
    return add_list(joined_.plan, tokens);
  }

  void add_slices(ComputeItem& item, const ComputeItem& received) {
    std::vector<BandSlice>& slices = joined_.plan.slices;
    const auto own = plan_.slices_of(item), others = plan_.slices_of(received);
    item.first_slice = static_cast<int64_t>(slices.size());
    item.visible_pairs += received.visible_pairs;
    slices.insert(slices.end(), own.begin(), own.end());
    for (const BandSlice& slice : others) {
      for (const ReceivedRows& stretch : stretches_[item.rank]) {
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
  void add_merge(Direction direction, int64_t index, PassWriter& writer) {
    MergeItem item = writer.from().merges[static_cast<size_t>(index)];
    if (is_placed(item.into)) return;  // received gradients are sent from their place
    const bool is_backward = direction == Direction::backward;
    const Halves& halves = halves_[direction][item.rank];
    if (is_backward && item.into == plan_.home[item.rank].dkv) {
      if (keeps_[item.rank]) item.partial = kNoBuffer;
    } else if (halves.is_pair()) {
      const ComputeItem &own = compute(direction, halves.own),
                        &received = compute(direction, halves.received);
      const BufferId of_received = is_backward ? received.dq : received.out;
      if (item.partial == of_received) {
        if (item.order > 0) return;
        item.partial = is_backward ? own.dq : own.out;
      }
    }
    writer.add(item, writer.notes().merges[static_cast<size_t>(index)]);
  }

  const Plan& plan_;
  const AskKernel& can_join_;
  ByDirection<IdVector<RankId, Halves>> halves_;
  IdVector<BufferId, Place> places_;  // kNoBuffer: not moved
  IdVector<RankId, bool> keeps_;      // its own gradients become a share
  IdVector<RankId, std::vector<ReceivedRows>> stretches_;
  std::map<std::array<int64_t, 3>, RunListId> named_;
  LoweredPlan joined_;
};

}  // namespace

void join_computes(LoweredPlan& lowered, const Lowering& lowering) {
  if (!lowering.can_join || moves_queries(lowered.plan)) return;
  if (auto joined = Joiner(lowered, lowering.can_join).join()) lowered = std::move(*joined);
}

}  // namespace cpscope::kernels
