#include "kernels/lower/pass_writer.h"
#include "kernels/lower/passes.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace cpscope::kernels {
namespace {

/// True if every rank has one compute item.
bool computes_once(const Plan& plan, const Pass& pass) {
  IdVector<RankId, int32_t> count(plan.home.size(), 0);
  for (const ComputeItem& item : pass.computes) ++count[item.rank];
  return std::all_of(count.begin(), count.end(), [](int32_t n) { return n == 1; });
}

/// Part of `heads` in a piece, given the ends of all pieces.
HeadRange part_of(HeadRange heads, const std::vector<int32_t>& ends, size_t piece) {
  if (piece >= ends.size()) return {heads.end, heads.end};
  const int32_t begin = piece == 0 ? heads.begin : std::max(heads.begin, ends[piece - 1]);
  const int32_t end = piece + 1 == ends.size() ? heads.end : std::min(heads.end, ends[piece]);
  return {begin, std::max(begin, end)};
}

/// Adds some heads of a transfer, if there are any.
void add_heads(const TransferItem& whole, TransferNote note, HeadRange heads, int32_t piece,
               PassWriter& writer) {
  if (heads.size() == 0) return;
  TransferItem item = whole;
  item.heads = heads;
  item.bytes = whole.bytes / whole.heads.size() * heads.size();
  note.piece = piece;
  writer.add(item, note);
}

/// True if only transfers come before the computes, and the kernels can wait for pieces of them.
bool may_cut_inputs(const Plan& plan, const Pass& pass, const Lowering& lowering) {
  if (lowering.pieces.most <= 1 || !lowering.waits_for_pieces || moves_queries(plan) ||
      !computes_once(plan, pass))
    return false;
  for (const ComputeItem& item : pass.computes) {
    if (item.num_slices > 0 && !lowering.waits_for_pieces(item)) return false;
  }
  const size_t first_compute = first_compute_stage(pass);
  for (size_t s = 0; s < first_compute; ++s) {
    const Stage& stage = pass.stages[s];
    if (stage.kind != StageKind::transfer) return false;
    // Row statistics read all of d_out before the kernels begin.
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      if (pass.transfers[static_cast<size_t>(i)].payload == Payload::d_out) return false;
    }
  }
  return first_compute > 0;
}

/// Bytes that a rank receives before its computes, which is about what it sends.
IdVector<RankId, int64_t> input_bytes(const Plan& plan, const Pass& pass) {
  IdVector<RankId, int64_t> bytes(plan.home.size(), 0);
  for (size_t s = 0; s < first_compute_stage(pass); ++s) {
    const Stage& stage = pass.stages[s];
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      const TransferItem& item = pass.transfers[static_cast<size_t>(i)];
      if (item.src != item.dst) bytes[item.dst] += item.bytes;
    }
  }
  return bytes;
}

HeadCuts input_cuts(const Attention& attention, const ComputeItem& item, int64_t input_bytes,
                    int32_t most_pieces) {
  const int32_t group = attention.heads / attention.kv_heads;
  const HeadRange kv = kv_heads_of(attention, item.heads);
  // Whole KV heads: both sides of the attention arrive in the same pieces.
  if (kv.begin * group < item.heads.begin || kv.end * group > item.heads.end)
    return {{item.heads.end}, {kv.end}};
  HeadCuts cuts;
  for (const int32_t end : cut_heads(kv.size(), most_pieces, input_bytes / kv.size())) {
    cuts.kv.push_back(kv.begin + end);
    cuts.q.push_back((kv.begin + end) * group);
  }
  return cuts;
}

/// Number of heads in the last item. A quarter is enough to hide the transfer of the others; with
/// more than a third, nothing is cut.
int32_t late_heads(int32_t heads, int64_t rows, int64_t fewest_tiles, int32_t together) {
  constexpr int64_t kTileRows = 128;
  const int64_t tiles = std::max<int64_t>(1, rows / kTileRows);
  const int64_t enough = (fewest_tiles + tiles - 1) / tiles;
  int64_t last = std::max<int64_t>(heads / 4, enough);
  last = (last + together - 1) / together * together;
  return 3 * last > heads ? 0 : static_cast<int32_t>(last);
}

/// Cuts one direction by heads, where results are sent.
class ResultCutter {
 public:
  ResultCutter(LoweredPlan& lowered, Direction direction, const Lowering& lowering)
      : lowered_(lowered), direction_(direction), lowering_(lowering) {}

  /// True if only transfers follow the computes, and some of them need no kernel; a kernel would
  /// wait until others leave it a multiprocessor.
  bool may_cut() const {
    const Pass& pass = lowered_.plan.pass(direction_);
    if (lowering_.pieces.most <= 1 || moves_queries(lowered_.plan) ||
        !computes_once(lowered_.plan, pass))
      return false;
    bool sends = false;
    for (size_t s = first_compute_stage(pass) + 1; s < pass.stages.size(); ++s) {
      const Stage& stage = pass.stages[s];
      if (stage.kind != StageKind::transfer) return false;
      for (auto i = static_cast<size_t>(stage.begin); i < static_cast<size_t>(stage.end); ++i)
        sends |= is_sent_in_parts(pass.transfers[i], lowered_.notes[direction_].transfers[i]);
    }
    return sends;
  }

  void cut() {
    IdVector<RankId, HeadCuts> cuts(lowered_.plan.home.size());
    for (const ComputeItem& item : lowered_.plan.pass(direction_).computes)
      cuts[item.rank] = cuts_of(item);
    PassWriter writer(lowered_, direction_);
    const Pass& pass = writer.from();
    const size_t first_compute = first_compute_stage(pass);
    for (size_t s = 0; s < pass.stages.size(); ++s) {
      if (s < first_compute) {
        writer.copy_stage(pass.stages[s]);
      } else {
        cut_stage(pass.stages[s], cuts, writer);
      }
    }
  }

 private:
  /// True if a transfer is sent in two parts. Shares are not: if enough heads are sent early, CTAs
  /// of the last few heads wait for each other's turns, which costs more than the wire.
  bool is_sent_in_parts(const TransferItem& item, const TransferNote& note) const {
    return item.src != item.dst && !note.is_share && item.landing == Landing::replace &&
           lowered_.buffers[item.from].is_narrow;
  }

  /// Makes the last heads of an item a separate item. The gradients of a KV head belong to one
  /// item.
  HeadCuts cuts_of(const ComputeItem& item) const {
    const Plan& plan = lowered_.plan;
    const Attention& attention = plan.scenario.attention;
    const int32_t group = attention.heads / attention.kv_heads;
    const int64_t fewest_tiles = lowering_.pieces.fewest_tiles;
    const HeadRange q = item.heads, kv = kv_heads_of(attention, q);
    if (direction_ == Direction::forward) {
      const int32_t together = lowering_.heads_together ? lowering_.heads_together(plan, item) : 1;
      const int32_t last = late_heads(q.size(), plan.rows(item.q_tokens), fewest_tiles, together);
      return {{q.end - last, q.end}, {}};
    }
    const bool has_whole_groups = kv.begin * group >= q.begin && kv.end * group <= q.end;
    const int32_t last =
        has_whole_groups ? late_heads(kv.size(), plan.rows(item.kv_tokens), fewest_tiles, 1) : 0;
    return {{q.end - last * group, q.end}, {kv.end - last, kv.end}};
  }

  /// All of the first parts come first. Transfers that are sent whole come last: they read all
  /// heads and may need a kernel, and the others need not wait for them.
  void cut_stage(const Stage& stage, const IdVector<RankId, HeadCuts>& cuts,
                 PassWriter& writer) const {
    const bool is_compute = stage.kind == StageKind::compute;
    const auto is_whole = [&](size_t i) {
      return !is_compute &&
             !is_sent_in_parts(writer.from().transfers[i], writer.notes().transfers[i]);
    };
    const auto begin = static_cast<size_t>(stage.begin), end = static_cast<size_t>(stage.end);
    writer.open(stage.step, stage.kind);
    for (const size_t part : {0, 1}) {
      for (size_t i = begin; i < end; ++i) {
        if (is_compute) {
          add_part(writer.from().computes[i], writer.notes().computes[i], part, cuts, writer);
        } else if (!is_whole(i)) {
          const TransferItem& item = writer.from().transfers[i];
          const HeadCuts& own = cuts[item.src];
          add_heads(item, writer.notes().transfers[i],
                    part_of(item.heads, item.payload == Payload::dkv ? own.kv : own.q, part),
                    kWhole, writer);
        }
      }
    }
    for (size_t i = begin; i < end; ++i) {
      if (is_whole(i)) writer.copy(stage.kind, static_cast<int64_t>(i));
    }
    writer.close();
  }

  static void add_part(ComputeItem item, const ComputeNote& note, size_t part,
                       const IdVector<RankId, HeadCuts>& cuts, PassWriter& writer) {
    const HeadRange whole = item.heads;
    item.heads = part_of(whole, cuts[item.rank].q, part);
    if (item.heads.size() == 0) return;
    item.visible_pairs = item.visible_pairs / whole.size() * item.heads.size();
    writer.add(item, note);
  }

  LoweredPlan& lowered_;
  const Direction direction_;
  const Lowering& lowering_;
};

/// Order of a stage's transfers, nearest receivers first.
std::vector<int64_t> nearest_first(const LoweredPlan& lowered, Direction direction,
                                   const Stage& stage) {
  std::vector<int64_t> order(static_cast<size_t>(stage.end - stage.begin));
  std::iota(order.begin(), order.end(), stage.begin);
  const auto of = [&](int64_t i) -> const TransferItem& {
    return lowered.plan.pass(direction).transfers[static_cast<size_t>(i)];
  };
  const auto is_ordered = [&](int64_t i) {
    return of(i).landing == Landing::add &&
           !lowered.notes[direction].transfers[static_cast<size_t>(i)].is_share;
  };
  if (std::any_of(order.begin(), order.end(), is_ordered)) return order;
  const auto ranks = static_cast<int32_t>(lowered.plan.home.size());
  const auto distance = [&](int64_t i) {
    return (to_index(of(i).dst) - to_index(of(i).src) + ranks) % ranks;
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return distance(a) < distance(b); });
  return order;
}

}  // namespace

void send_nearest_first(LoweredPlan& lowered, const Lowering& /*lowering*/) {
  for (const Direction direction : kDirections) {
    std::vector<int64_t> order;  // of all transfers, stage by stage
    for (const Stage& stage : lowered.plan.pass(direction).stages) {
      if (stage.kind != StageKind::transfer) continue;
      const std::vector<int64_t> of_stage = nearest_first(lowered, direction, stage);
      order.insert(order.end(), of_stage.begin(), of_stage.end());
    }
    PassWriter writer(lowered, direction);
    auto next = order.begin();
    for (const Stage& stage : writer.from().stages) {
      writer.open(stage.step, stage.kind);
      for (int64_t i = stage.begin; i < stage.end; ++i)
        writer.copy(stage.kind, stage.kind == StageKind::transfer ? *next++ : i);
      writer.close();
    }
  }
}

void cut_inputs(LoweredPlan& lowered, const Lowering& lowering) {
  const Plan& plan = lowered.plan;
  for (const Direction direction : kDirections) {
    if (!may_cut_inputs(plan, plan.pass(direction), lowering)) continue;
    const IdVector<RankId, int64_t> bytes = input_bytes(plan, plan.pass(direction));
    PassWriter writer(lowered, direction);
    writer.new_notes().is_cut = true;
    IdVector<RankId, RankNote>& ranks = writer.new_notes().ranks;
    size_t num_pieces = 0;
    for (const ComputeItem& item : writer.from().computes) {
      HeadCuts& cuts = ranks[item.rank].cuts;
      cuts = input_cuts(plan.scenario.attention, item, bytes[item.rank], lowering.pieces.most);
      num_pieces = std::max(num_pieces, cuts.q.size());
    }
    const std::vector<Stage>& stages = writer.from().stages;
    const size_t first_compute = first_compute_stage(writer.from());
    for (size_t piece = 0; piece < num_pieces; ++piece) {
      for (size_t s = 0; s < first_compute; ++s) {
        writer.open(stages[s].step, stages[s].kind);
        for (auto i = static_cast<size_t>(stages[s].begin); i < static_cast<size_t>(stages[s].end);
             ++i) {
          const TransferItem& item = writer.from().transfers[i];
          const HeadCuts& cuts = ranks[item.dst].cuts;
          add_heads(item, writer.notes().transfers[i],
                    part_of(item.heads, item.payload == Payload::kv ? cuts.kv : cuts.q, piece),
                    static_cast<int32_t>(piece), writer);
        }
        writer.close();
      }
    }
    for (size_t s = first_compute; s < stages.size(); ++s) writer.copy_stage(stages[s]);
  }
}

void cut_results(LoweredPlan& lowered, const Lowering& lowering) {
  for (const Direction direction : kDirections) {
    ResultCutter cutter(lowered, direction, lowering);
    if (cutter.may_cut()) cutter.cut();
  }
}

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

}  // namespace cpscope::kernels
