#include "kernels/lower/pass_writer.h"
#include "kernels/lower/passes.h"
#include "sim/plan/item_uses.h"

#include <array>

namespace cpscope::kernels {
namespace {

constexpr int64_t kNoMerge = -1;

/// Destination of one result of a compute item.
struct WrittenResult {
  BufferId buffer = kNoBuffer;  // destination, in place of its partial
  OwnMerge own_merge;           // with the stored values
};

/// Merges and finishes of one direction that need no separate pass over memory.
struct MergeSavings {
  std::vector<std::array<WrittenResult, 2>> written;  // [compute item] {out, none} or {dq, dkv}
  std::vector<bool> is_merged;                        // [merge item] the compute item does it
  std::vector<bool> rounds;       // [merge item] its sums are rounded to the dtype
  std::vector<bool> is_finished;  // [finish item] a merge has rounded it
};

/// Visits a pass in order and tracks what its buffers hold. The first merge into an accumulator is
/// a copy: the compute item writes there directly. A later merge can be done by the compute item,
/// if its kernel can merge and the accumulator waits for nothing else. The rounding of a finish can
/// be done by the last addition to its accumulator.
class MergeSaver {
 public:
  MergeSaver(const Plan& plan, Direction direction, const AskKernel& can_merge)
      : plan_(plan),
        direction_(direction),
        pass_(plan.pass(direction)),
        can_merge_(can_merge),
        state_(plan.buffers.size()) {
    for (const ComputeItem& item : pass_.computes) {
      found_.written.push_back({});
      if (direction == Direction::backward) {
        found_.written.back() = {WrittenResult{item.dq, {}}, WrittenResult{item.dkv, {}}};
      } else {
        found_.written.back()[0].buffer = item.out;
      }
    }
    found_.is_merged.assign(pass_.merges.size(), false);
    found_.rounds.assign(pass_.merges.size(), false);
    found_.is_finished.assign(pass_.finishes.size(), false);
  }

  MergeSavings find() {
    for_each_item(plan_, direction_, [&](const ItemId& id, const auto& item) {
      ++now_;
      visit(id.index, item);
    });
    return std::move(found_);
  }

 private:
  struct State {
    int64_t touched_at = kNoMerge;    // number of the last item that touched it, within the pass
    int32_t num_writers = 0;          // compute items that wrote its content
    int64_t writer = kNoMerge;        // the last of them
    size_t result = 0;                // index of the writer's result
    int64_t saved_merge = kNoMerge;   // the merge whose destination got this buffer's content
                                      // directly
    int64_t last_merge = kNoMerge;    // last merge into it, if no item touched it since
    int64_t direct_merge = kNoMerge;  // the same, but saved by the compute item that wrote the
                                      // result there

    bool is_touched() const { return touched_at != kNoMerge; }
    bool is_merged() const { return last_merge != kNoMerge || direct_merge != kNoMerge; }
  };

  /// Handles a read of a buffer that was not filled because its merge was saved: the merge must be
  /// done as planned.
  void restore(BufferId id) {
    const State& state = state_[id];
    const int64_t saved = state.saved_merge;
    if (saved == kNoMerge) return;
    const MergeItem& item = pass_.merges[static_cast<size_t>(saved)];
    found_.is_merged[static_cast<size_t>(saved)] = false;
    WrittenResult& written = found_.written[static_cast<size_t>(state.writer)][state.result];
    if (written.own_merge.rounds) found_.rounds[static_cast<size_t>(saved)] = true;
    written = {item.partial, {}};
    State& into = state_[item.into];
    if (into.direct_merge == saved) into.direct_merge = kNoMerge;
    if (into.last_merge == saved) into.writer = kNoMerge;
  }

  void touch(BufferId id) {
    if (id == kNoBuffer) return;
    restore(id);
    state_[id] = {.touched_at = now_};
  }

  void visit(int64_t /*index*/, const TransferItem& item) {
    visit_buffers(item, [&](BufferId id) { touch(id); });
  }
  void visit(int64_t /*index*/, const ReorderItem& item) {
    visit_buffers(item, [&](BufferId id) { touch(id); });
  }

  void visit(int64_t i, const ComputeItem& item) {
    if (item.num_slices == 0) return;
    const auto& results = found_.written[static_cast<size_t>(i)];
    for (size_t r = 0; r < results.size(); ++r) {
      if (results[r].buffer == kNoBuffer) continue;
      State& state = state_[results[r].buffer];
      state = {.touched_at = now_, .num_writers = state.num_writers + 1, .writer = i, .result = r};
    }
  }

  /// True if a partial may be written at the destination of its merge: both have the same layout of
  /// rows.
  bool is_alike(BufferId partial, BufferId into) const {
    const BufferSpec &a = plan_.buffer(partial), &b = plan_.buffer(into);
    return a.kind == b.kind && a.rank == b.rank && a.heads.begin == b.heads.begin &&
           a.heads.end == b.heads.end && a.rows == b.rows;
  }

  /// True if the item that wrote a partial may merge it. The values to merge with must be stored
  /// before its kernel begins, and come from merges: an item that merges with the result of a
  /// transfer would wait for the transfer too early.
  bool may_merge(const MergeItem& item, const State& partial) {
    const State& into = state_[item.into];
    const bool is_first_result = partial.result == 0;  // out or dq
    return item.order > 0 && is_first_result && into.is_merged() &&
           into.touched_at < partial.touched_at && can_merge_ &&
           can_merge_(pass_.computes[static_cast<size_t>(partial.writer)]);
  }

  void visit(int64_t i, const MergeItem& item) {
    if (item.partial == kNoBuffer) return touch(item.into);
    restore(item.partial);
    const State partial = state_[item.partial];
    const bool may_save =
        partial.num_writers == 1 && item.into_rows == kAllRows && is_alike(item.partial, item.into);
    const bool is_direct = may_save && item.order == 0 && !state_[item.into].is_touched();
    const bool is_own = may_save && may_merge(item, partial);
    const bool is_saved = is_direct || is_own;
    if (is_saved) {
      found_.written[static_cast<size_t>(partial.writer)][partial.result] = {item.into,
                                                                             {.merges = is_own}};
      found_.is_merged[static_cast<size_t>(i)] = true;
    }
    state_[item.partial] = {.touched_at = now_,
                            .writer = partial.writer,
                            .result = partial.result,
                            .saved_merge = is_saved ? i : kNoMerge};
    state_[item.into] = {.touched_at = now_,
                         .writer = is_own ? partial.writer : kNoMerge,
                         .result = partial.result,
                         .last_merge = is_direct ? kNoMerge : i,
                         .direct_merge = is_direct ? i : kNoMerge};
  }

  bool rounds_all(const MergeItem& item) const {
    return item.order > 0 && item.into_rows == kAllRows && has_all_heads(plan_, item);
  }

  void visit(int64_t i, const FinishItem& item) {
    const State state = state_[item.buffer];
    const bool is_out = plan_.buffer(item.buffer).kind == BufferKind::out;
    const bool only_rounds =
        !is_out || plan_.scenario.attention.softmax_type == SoftmaxType::vanilla;
    // A first merge is a copy, which does not round; nor does a kernel that adds to dq; and a merge
    // of some rows, or of some heads, rounds no others.
    if (only_rounds && state.last_merge != kNoMerge && (is_out || state.writer == kNoMerge) &&
        rounds_all(pass_.merges[static_cast<size_t>(state.last_merge)])) {
      if (state.writer != kNoMerge) {
        found_.written[static_cast<size_t>(state.writer)][state.result].own_merge.rounds = true;
      } else {
        found_.rounds[static_cast<size_t>(state.last_merge)] = true;
      }
      found_.is_finished[static_cast<size_t>(i)] = true;
    }
    touch(item.buffer);
  }

  const Plan& plan_;
  const Direction direction_;
  const Pass& pass_;
  const AskKernel& can_merge_;
  MergeSavings found_;
  IdVector<BufferId, State> state_;
  int64_t now_ = 0;  // items so far
};

}  // namespace

void save_merges(LoweredPlan& lowered, const Lowering& lowering) {
  for (const Direction direction : kDirections) {
    const MergeSavings found = MergeSaver(lowered.plan, direction, lowering.can_merge).find();
    Pass& pass = lowered.plan.pass(direction);
    PassNotes& notes = lowered.notes[direction];
    for (size_t i = 0; i < pass.computes.size(); ++i) {
      const std::array<WrittenResult, 2>& written = found.written[i];
      if (direction == Direction::backward) {
        pass.computes[i].dq = written[0].buffer;
        pass.computes[i].dkv = written[1].buffer;
      } else {
        pass.computes[i].out = written[0].buffer;
      }
      notes.computes[i].own_merge = written[0].own_merge;
    }
    for (size_t i = 0; i < pass.merges.size(); ++i) notes.merges[i].rounds = found.rounds[i];
    keep_items(lowered, direction, [&](StageKind kind, size_t i) {
      if (kind == StageKind::merge) return !found.is_merged[i];
      return kind != StageKind::finish || !found.is_finished[i];
    });
  }
}

}  // namespace cpscope::kernels
