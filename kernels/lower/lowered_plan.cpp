#include "kernels/lower/lowered_plan.h"

#include "kernels/lower/gradient_shares.h"
#include "kernels/lower/item_buffers.h"
#include "kernels/lower/narrow_buffers.h"
#include "kernels/lower/reorder_savings.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>

namespace cpscope::kernels {
namespace {

/// Makes the items of one pass.
class PassLowering {
 public:
  PassLowering(const Plan& plan, bool is_backward, const Lowering& lowering, LoweredPlan& lowered,
               const MergeShortcuts& shortcuts, const std::vector<ReorderSaving>& savings,
               SkippedRows& skipped)
      : plan_(plan),
        pass_(is_backward ? plan.backward : plan.forward),
        is_backward_(is_backward),
        lowered_(lowered),
        to_(is_backward ? lowered.plan.backward : lowered.plan.forward),
        origins_(lowered.origins[is_backward ? 1 : 0]),
        shortcuts_(shortcuts),
        savings_(savings),
        skipped_(skipped) {
    to_ = {};
    to_.num_steps = pass_.num_steps;
    while (first_compute_ < pass_.stages.size() &&
           pass_.stages[first_compute_].kind != StageKind::compute)
      ++first_compute_;
    find_skips();
    // Lists of rows that skip reorders belong to the lowered plan.
    landings_ = find_landing_savings(lowered_.plan, pass_, transfers_, savings_);
    for (size_t i = 0; i < transfers_.size(); ++i) {
      if (landings_.replaces[i]) transfers_[i].landing = Landing::replace;
    }
    is_share_.assign(transfers_.size(), false);
    if (is_backward_) {
      const GradientPass pass{plan_, pass_, transfers_, savings_, shortcuts_, landings_};
      find_narrow_gradients(pass, lowering.writes_dtype, lowered_.is_narrow);
      if (lowering.adds_shares) find_shares(pass, lowering);
    }
    if (may_cut(lowering)) cut_inputs(lowering.pieces.most);
    if (may_cut_results(lowering)) cut_results(lowering);
  }

  void make() {
    size_t next = 0;
    if (origins_.is_cut()) {
      add_inputs();
      next = first_compute_;
    }
    for (; next < pass_.stages.size(); ++next) {
      const Stage& stage = pass_.stages[next];
      is_cut(stage) ? add_parts(stage) : add_whole(stage);
    }
  }

 private:
  /// Finds the shares. Their sums are not zeroed first, and are rounded when they are written.
  void find_shares(const GradientPass& pass, const Lowering& lowering) {
    is_share_ = find_gradient_shares(pass);
    std::vector<bool> is_sum(plan_.buffers.size(), false);
    for (size_t i = 0; i < transfers_.size(); ++i) {
      if (is_share_[i]) is_sum[static_cast<size_t>(to_index(transfers_[i].to))] = true;
    }
    for (size_t b = 0; b < is_sum.size(); ++b)
      lowered_.is_narrow[b] = lowered_.is_narrow[b] || is_sum[b];
    for (size_t i = 0; i < pass_.merges.size(); ++i) {
      if (is_sum[static_cast<size_t>(to_index(pass_.merges[i].into))])
        landings_.is_merged[i] = true;
    }
    if (lowering.writes_dtype)
      lowered_.has_wire_copy = find_wire_copies(pass, lowering.writes_dtype, lowered_.is_narrow);
  }

  bool computes_once() const {
    std::vector<int32_t> count(plan_.home.size(), 0);
    for (const ComputeItem& item : pass_.computes)
      ++count[static_cast<size_t>(to_index(item.rank))];
    return std::all_of(count.begin(), count.end(), [](int32_t n) { return n == 1; });
  }

  /// True if every rank computes once, with only transfers before.
  bool may_cut(const Lowering& lowering) const {
    if (lowering.pieces.most <= 1 || !lowering.waits_for_pieces || !computes_once()) return false;
    for (const ComputeItem& item : pass_.computes) {
      if (item.num_slices > 0 && !lowering.waits_for_pieces(item)) return false;
    }
    bool has_transfers = false;
    for (size_t s = 0; s < first_compute_; ++s) {
      const Stage& stage = pass_.stages[s];
      if (stage.kind == StageKind::transfer) {
        has_transfers = true;
        // Row statistics read all of d_out before the kernels begin.
        for (int64_t i = stage.begin; i < stage.end; ++i) {
          if (pass_.transfers[static_cast<size_t>(i)].payload == Payload::d_out) return false;
        }
        continue;
      }
      for (int64_t i = stage.begin; i < stage.end; ++i) {
        if (has_work(stage.kind, i)) return false;
      }
    }
    return has_transfers;
  }

  void cut_inputs(int32_t most_pieces) {
    const Attention& attention = plan_.scenario.attention;
    const int32_t group = attention.heads / attention.kv_heads;
    origins_.cuts.resize(plan_.home.size());
    const std::vector<int64_t> bytes = input_bytes();
    for (const ComputeItem& item : pass_.computes) {
      const HeadRange kv = kv_heads_of(attention, item.heads);
      HeadCuts& cuts = origins_.cuts[static_cast<size_t>(to_index(item.rank))];
      // Whole KV heads: both sides of the attention arrive in the same pieces.
      if (kv.begin * group < item.heads.begin || kv.end * group > item.heads.end) {
        cuts = {{item.heads.end}, {kv.end}};
      } else {
        const int64_t head_bytes = bytes[static_cast<size_t>(to_index(item.rank))] / kv.size();
        for (const int32_t end : cut_heads(kv.size(), most_pieces, head_bytes)) {
          cuts.kv.push_back(kv.begin + end);
          cuts.q.push_back((kv.begin + end) * group);
        }
      }
      num_pieces_ = std::max(num_pieces_, cuts.q.size());
    }
  }

  /// [rank] Bytes that it receives before its computes, which is about what it sends.
  std::vector<int64_t> input_bytes() const {
    std::vector<int64_t> bytes(plan_.home.size(), 0);
    for (size_t s = 0; s < first_compute_; ++s) {
      const Stage& stage = pass_.stages[s];
      for (int64_t i = stage.begin; stage.kind == StageKind::transfer && i < stage.end; ++i) {
        const TransferItem& item = pass_.transfers[static_cast<size_t>(i)];
        if (item.src != item.dst) bytes[static_cast<size_t>(to_index(item.dst))] += item.bytes;
      }
    }
    return bytes;
  }

  /// True if only transfers follow the computes, and some of them need no kernel; a kernel would
  /// wait until others leave it a multiprocessor.
  bool may_cut_results(const Lowering& lowering) const {
    if (lowering.pieces.most <= 1 || !computes_once()) return false;
    bool sends = false;
    for (size_t s = first_compute_ + 1; s < pass_.stages.size(); ++s) {
      const Stage& stage = pass_.stages[s];
      for (int64_t i = stage.begin; i < stage.end; ++i) {
        if (!has_work(stage.kind, i)) continue;
        if (stage.kind != StageKind::transfer) return false;
        sends |= is_sent_in_parts(i);
      }
    }
    return sends;
  }

  /// True if a transfer is sent in two parts. Shares are not: if enough heads are sent early, CTAs
  /// of the last few heads wait for each other's turns, which costs more than the wire.
  bool is_sent_in_parts(int64_t transfer) const {
    const auto item = static_cast<size_t>(transfer);
    return !is_local(transfer) && !is_share(transfer) &&
           transfers_[item].landing == Landing::replace &&
           lowered_.is_narrow[static_cast<size_t>(to_index(transfers_[item].from))];
  }

  /// Makes each rank's last heads a separate item. The gradients of a KV head belong to one item.
  void cut_results(const Lowering& lowering) {
    const int64_t fewest_tiles = lowering.pieces.fewest_tiles;
    const Attention& attention = plan_.scenario.attention;
    const int32_t group = attention.heads / attention.kv_heads;
    result_cuts_.resize(plan_.home.size());
    for (const ComputeItem& item : pass_.computes) {
      const HeadRange q = item.heads, kv = kv_heads_of(attention, q);
      HeadCuts& cuts = result_cuts_[static_cast<size_t>(to_index(item.rank))];
      if (!is_backward_) {
        const int32_t together = lowering.heads_together ? lowering.heads_together(plan_, item) : 1;
        const int32_t last =
            late_heads(q.size(), plan_.rows(item.q_tokens), fewest_tiles, together);
        cuts = {{q.end - last, q.end}, {}};
        continue;
      }
      const bool has_whole_groups = kv.begin * group >= q.begin && kv.end * group <= q.end;
      const int32_t last =
          has_whole_groups ? late_heads(kv.size(), plan_.rows(item.kv_tokens), fewest_tiles, 1) : 0;
      cuts = {{q.end - last * group, q.end}, {kv.end - last, kv.end}};
    }
  }

  /// Number of heads in the last item. A quarter is enough to hide the transfer of the others; with
  /// more than a third, nothing is cut.
  static int32_t late_heads(int32_t heads, int64_t rows, int64_t fewest_tiles, int32_t together) {
    constexpr int64_t kTileRows = 128;
    const int64_t tiles = std::max<int64_t>(1, rows / kTileRows);
    const int64_t enough = (fewest_tiles + tiles - 1) / tiles;
    int64_t last = std::max<int64_t>(heads / 4, enough);
    last = (last + together - 1) / together * together;
    return 3 * last > heads ? 0 : static_cast<int32_t>(last);
  }

  bool is_cut(const Stage& stage) const {
    return !result_cuts_.empty() &&
           (stage.kind == StageKind::compute || stage.kind == StageKind::transfer);
  }

  /// Finds the transfers that take over the work of a reorder.
  void find_skips() {
    std::map<int32_t, const ReorderItem*> landings, sendings;  // [buffer between]
    for (size_t i = 0; i < savings_.size(); ++i) {
      const ReorderItem& item = pass_.reorders[i];
      if (savings_[i] == ReorderSaving::landing) landings[to_index(item.from)] = &item;
      if (savings_[i] == ReorderSaving::sending) sendings[to_index(item.to)] = &item;
    }
    transfers_ = pass_.transfers;
    for (TransferItem& item : transfers_) {
      const auto landing = landings.find(to_index(item.to));
      const auto sending = sendings.find(to_index(item.from));
      const int64_t num_rows = num_rows_of(plan_, item);
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

  RunListId list_of(const ReorderItem& reorder, ReorderSaving saving, RunListId rows,
                    int64_t num_rows) {
    const std::array key{to_index(reorder.order), to_index(rows), static_cast<int32_t>(saving)};
    const auto [entry, is_new] = lists_.try_emplace(key);
    if (!is_new) return entry->second;
    const std::vector<TokenRun> runs = skipped_.find(reorder, saving, rows, num_rows);
    Plan& plan = lowered_.plan;
    entry->second = RunListId{static_cast<int32_t>(plan.run_lists.size())};
    plan.run_lists.push_back({static_cast<int64_t>(plan.runs.size()),
                              static_cast<int64_t>(runs.size()), count_ids(runs)});
    plan.runs.insert(plan.runs.end(), runs.begin(), runs.end());
    return entry->second;
  }

  /// True if an item of the stage still has work.
  bool has_work(StageKind kind, int64_t i) const {
    const auto item = static_cast<size_t>(i);
    if (kind == StageKind::merge) return !shortcuts_.is_merged[item] && !landings_.is_merged[item];
    if (kind == StageKind::finish) {
      const BufferId buffer = pass_.finishes[item].buffer;
      return !shortcuts_.is_finished[item] && !landings_.is_finished[item] &&
             !lowered_.is_narrow[static_cast<size_t>(to_index(buffer))];
    }
    if (kind == StageKind::reorder) return savings_[item] == ReorderSaving::none;
    return true;
  }

  void open(const Stage& stage) { open_ = {stage.step, stage.kind, count_of(stage.kind), 0}; }

  void close() {
    open_.end = count_of(open_.kind);
    if (open_.end > open_.begin) to_.stages.push_back(open_);
  }

  int64_t count_of(StageKind kind) const {
    switch (kind) {
      case StageKind::transfer:
        return static_cast<int64_t>(to_.transfers.size());
      case StageKind::reorder:
        return static_cast<int64_t>(to_.reorders.size());
      case StageKind::compute:
        return static_cast<int64_t>(to_.computes.size());
      case StageKind::merge:
        return static_cast<int64_t>(to_.merges.size());
      case StageKind::finish:
        return static_cast<int64_t>(to_.finishes.size());
    }
    return 0;
  }

  void add_whole(const Stage& stage) {
    open(stage);
    for (const int64_t i : order_of(stage)) {
      if (has_work(stage.kind, i)) add(stage.kind, i);
    }
    close();
  }

  /// Adds everything before the computes, piece by piece.
  void add_inputs() {
    for (size_t piece = 0; piece < num_pieces_; ++piece) {
      for (size_t s = 0; s < first_compute_; ++s) {
        const Stage& stage = pass_.stages[s];
        if (stage.kind != StageKind::transfer) continue;
        open(stage);
        for (const int64_t i : order_of(stage))
          add_piece(transfers_[static_cast<size_t>(i)], i, piece);
        close();
      }
    }
  }

  /// Adds computes in two items, or the transfers of their results: all of the first items come
  /// first.
  void add_parts(const Stage& stage) {
    const std::vector<int64_t> order = order_of(stage);
    const auto is_whole = [&](int64_t i) {
      return stage.kind == StageKind::transfer && !is_sent_in_parts(i);
    };
    open(stage);
    for (const size_t part : {0, 1}) {
      for (const int64_t i : order) {
        if (!is_whole(i)) add_part(stage.kind, i, part);
      }
    }
    // These read all heads, and may need a kernel; the others need not wait for them.
    for (const int64_t i : order) {
      if (is_whole(i)) add(stage.kind, i);
    }
    close();
  }

  void add_part(StageKind kind, int64_t i, size_t part) {
    const auto index = static_cast<size_t>(i);
    if (kind == StageKind::compute) {
      ComputeItem item = pass_.computes[index];
      const HeadRange whole = item.heads;
      item.heads = part_of(whole, result_cuts_of(item.rank).q, part);
      if (item.heads.size() == 0) return;
      item.visible_pairs = item.visible_pairs / whole.size() * item.heads.size();
      add_compute(item, i);
      return;
    }
    const TransferItem& item = transfers_[index];
    const HeadCuts& cuts = result_cuts_of(item.src);
    add_heads(item, i, part_of(item.heads, item.payload == Payload::dkv ? cuts.kv : cuts.q, part),
              -1);
  }

  const HeadCuts& result_cuts_of(RankId rank) const {
    return result_cuts_[static_cast<size_t>(to_index(rank))];
  }

  bool is_share(int64_t transfer) const { return is_share_[static_cast<size_t>(transfer)]; }

  bool is_local(int64_t transfer) const {
    const TransferItem& item = pass_.transfers[static_cast<size_t>(transfer)];
    return item.src == item.dst;
  }

  /// Order of a stage's items. Every rank sends to its nearest neighbours first, so that all
  /// receive from different ones. Additions keep their order; for shares the receiver has it.
  std::vector<int64_t> order_of(const Stage& stage) const {
    std::vector<int64_t> order(static_cast<size_t>(stage.end - stage.begin));
    std::iota(order.begin(), order.end(), stage.begin);
    if (stage.kind != StageKind::transfer) return order;
    const auto of = [&](int64_t i) -> const TransferItem& {
      return transfers_[static_cast<size_t>(i)];
    };
    if (std::any_of(order.begin(), order.end(),
                    [&](int64_t i) { return of(i).landing == Landing::add && !is_share(i); }))
      return order;
    const auto ranks = static_cast<int32_t>(plan_.home.size());
    const auto distance = [&](int64_t i) {
      return (to_index(of(i).dst) - to_index(of(i).src) + ranks) % ranks;
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return distance(a) < distance(b); });
    return order;
  }

  void add(StageKind kind, int64_t i) {
    const auto item = static_cast<size_t>(i);
    if (kind != StageKind::transfer && kind != StageKind::compute) origins_.of(kind).push_back(i);
    switch (kind) {
      case StageKind::transfer:
        add_transfer(transfers_[item], i, -1);
        break;
      case StageKind::reorder:
        to_.reorders.push_back(pass_.reorders[item]);
        break;
      case StageKind::compute:
        add_compute(pass_.computes[item], i);
        break;
      case StageKind::merge:
        to_.merges.push_back(pass_.merges[item]);
        origins_.rounds.push_back(shortcuts_.rounds[item]);
        break;
      case StageKind::finish:
        to_.finishes.push_back(pass_.finishes[item]);
        break;
    }
  }

  void add_transfer(const TransferItem& item, int64_t origin, int32_t piece) {
    to_.transfers.push_back(item);
    origins_.of(StageKind::transfer).push_back(origin);
    origins_.roundings.push_back(landings_.roundings[static_cast<size_t>(origin)]);
    origins_.pieces.push_back(piece);
    origins_.are_shares.push_back(is_share(origin));
  }

  void add_compute(ComputeItem item, int64_t origin) {
    const auto& written = shortcuts_.written[static_cast<size_t>(origin)];
    if (is_backward_) {
      item.dq = written[0].buffer;
      item.dkv = written[1].buffer;
    } else {
      item.out = written[0].buffer;
    }
    to_.computes.push_back(item);
    origins_.own_merges.push_back({written[0].merges, written[0].rounds});
    origins_.of(StageKind::compute).push_back(origin);
  }

  /// Part of `heads` in a piece, given the ends of all pieces.
  static HeadRange part_of(HeadRange heads, const std::vector<int32_t>& ends, size_t piece) {
    if (piece >= ends.size()) return {heads.end, heads.end};
    const int32_t begin = piece == 0 ? heads.begin : std::max(heads.begin, ends[piece - 1]);
    const int32_t end = piece + 1 == ends.size() ? heads.end : std::min(heads.end, ends[piece]);
    return {begin, std::max(begin, end)};
  }

  void add_piece(const TransferItem& whole, int64_t origin, size_t piece) {
    const HeadCuts& cuts = origins_.cuts[static_cast<size_t>(to_index(whole.dst))];
    add_heads(whole, origin,
              part_of(whole.heads, whole.payload == Payload::kv ? cuts.kv : cuts.q, piece),
              static_cast<int32_t>(piece));
  }

  void add_heads(const TransferItem& whole, int64_t origin, HeadRange heads, int32_t piece) {
    if (heads.size() == 0) return;
    TransferItem item = whole;
    item.heads = heads;
    item.bytes = whole.bytes / whole.heads.size() * heads.size();
    add_transfer(item, origin, piece);
  }

  const Plan& plan_;
  const Pass& pass_;
  const bool is_backward_;
  LoweredPlan& lowered_;
  Pass& to_;
  LoweredPlan::Origins& origins_;
  const MergeShortcuts& shortcuts_;
  const std::vector<ReorderSaving>& savings_;
  SkippedRows& skipped_;
  std::vector<TransferItem> transfers_;  // the plan's, changed where reorders are saved
  LandingSavings landings_;
  std::vector<bool> is_share_;  // [the plan's transfer item]
  std::map<std::array<int32_t, 3>, RunListId> lists_;
  size_t num_pieces_ = 1;
  std::vector<HeadCuts> result_cuts_;  // [rank] head cuts of both items; empty: whole
  size_t first_compute_ = 0;           // stage
  Stage open_;
};

/// Removes the rows of buffers that no item uses any more.
void empty_unused_buffers(Plan& plan) {
  std::vector<bool> is_used(plan.buffers.size(), false);
  const auto use = [&](BufferId id) { is_used[static_cast<size_t>(to_index(id))] = true; };
  for (const HomeBuffers& home : plan.home) visit_buffers(home, use);
  for (const Pass* pass : {&plan.forward, &plan.backward}) {
    for (const Stage& stage : pass->stages) {
      for (int64_t i = stage.begin; i < stage.end; ++i)
        visit_buffers(*pass, stage.kind, static_cast<size_t>(i), use);
    }
  }
  for (size_t b = 0; b < plan.buffers.size(); ++b) {
    if (!is_used[b]) plan.buffers[b].rows = 0;
  }
}

std::array<std::vector<ReorderSaving>, 2> no_savings(const Plan& plan) {
  std::array<std::vector<ReorderSaving>, 2> none;
  none[0].resize(plan.forward.reorders.size(), ReorderSaving::none);
  none[1].resize(plan.backward.reorders.size(), ReorderSaving::none);
  return none;
}

}  // namespace

std::vector<int32_t> cut_heads(int32_t heads, int32_t most_pieces, int64_t head_bytes) {
  // Measured on two H200: sending 12 MB before the computes cost as much as it saved later.
  constexpr int64_t kFirstBytes = 5'000'000;
  const int64_t wanted = (kFirstBytes + head_bytes - 1) / std::max<int64_t>(1, head_bytes);
  const auto first = static_cast<int32_t>(std::clamp<int64_t>(wanted, 1, std::max(1, heads / 4)));
  std::vector<int32_t> ends;
  // 1, 1, 2, ...: while the pieces that have arrived are computed, the same amount arrives. Never
  // more than two heads or a quarter: the last piece arrives late, and the short tiles of all
  // pieces come last.
  const int32_t most = std::max(2, heads / 4);
  for (int32_t end = first; end < heads && static_cast<int32_t>(ends.size()) + 1 < most_pieces;
       end += std::min(end, most))
    ends.push_back(end);
  ends.push_back(heads);
  return ends;
}

namespace {

LoweredPlan lower_items(const Plan& plan, const Lowering& lowering) {
  LoweredPlan lowered;
  lowered.plan = plan;
  lowered.has_wire_copy.assign(plan.buffers.size(), false);
  for (const FinishItem& item : plan.forward.finishes) {
    if (plan.buffer(item.buffer).kind == BufferKind::out) lowered.answers.push_back(item.buffer);
  }
  const auto savings = lowering.saves_work ? find_reorder_savings(plan) : no_savings(plan);
  SkippedRows skipped(plan);
  for (const bool is_backward : {false, true}) {
    const Pass& pass = is_backward ? plan.backward : plan.forward;
    const MergeShortcuts shortcuts = lowering.saves_work
                                         ? find_shortcuts(plan, pass, lowering.can_merge)
                                         : no_shortcuts(plan, pass);
    if (!is_backward) lowered.is_narrow = find_narrow_outs(plan, shortcuts, lowering.writes_dtype);
    if (lowering.saves_work) {
      PassLowering(plan, is_backward, lowering, lowered, shortcuts, savings[is_backward ? 1 : 0],
                   skipped)
          .make();
      continue;
    }
    LoweredPlan::Origins& origins = lowered.origins[is_backward ? 1 : 0];
    const std::array sizes{pass.transfers.size(), pass.reorders.size(), pass.computes.size(),
                           pass.merges.size(), pass.finishes.size()};
    for (size_t kind = 0; kind < sizes.size(); ++kind) {
      origins.items[kind].resize(sizes[kind]);
      std::iota(origins.items[kind].begin(), origins.items[kind].end(), int64_t{0});
    }
    origins.roundings.resize(pass.transfers.size());
    origins.pieces.assign(pass.transfers.size(), -1);
    origins.are_shares.assign(pass.transfers.size(), false);
    origins.rounds.assign(pass.merges.size(), false);
    origins.own_merges.resize(pass.computes.size());
  }
  if (!lowering.saves_work) {
    lowered.is_narrow.assign(plan.buffers.size(), false);
    return lowered;
  }
  empty_unused_buffers(lowered.plan);
  spread_narrow_outs(lowered.plan, lowered.is_narrow);
  return lowered;
}

/// Traces joined items back to items of the plan.
void trace_back(const JoinedPlan& joined, LoweredPlan& lowered) {
  for (const size_t d : {0, 1}) {
    LoweredPlan::Origins& origins = lowered.origins[d];
    for (const int64_t item : origins.of(StageKind::compute))
      origins.parts.push_back(joined.parts[d][static_cast<size_t>(item)]);
    for (size_t kind = 0; kind < origins.items.size(); ++kind) {
      for (int64_t& item : origins.items[kind])
        item = joined.items[d][kind][static_cast<size_t>(item)];
    }
  }
}

}  // namespace

LoweredPlan lower_plan(const Plan& plan, const Lowering& lowering) {
  const bool may_join = lowering.saves_work && lowering.can_join;
  const auto joined = may_join ? join_computes(plan, lowering.can_join) : std::nullopt;
  LoweredPlan lowered = lower_items(joined ? joined->plan : plan, lowering);
  if (joined) trace_back(*joined, lowered);
  lowered.planned_computes = {static_cast<int64_t>(plan.forward.computes.size()),
                              static_cast<int64_t>(plan.backward.computes.size())};
  return lowered;
}

}  // namespace cpscope::kernels
