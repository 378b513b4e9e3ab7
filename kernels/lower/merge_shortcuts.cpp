#include "kernels/lower/merge_shortcuts.h"

#include <algorithm>

namespace cpscope::kernels {
namespace {

constexpr int64_t kNoMerge = -1;

/// Visits a pass in order and tracks what its buffers hold.
class ShortcutFinder {
 public:
  ShortcutFinder(const Plan& plan, const Pass& pass, const MergingKernels& can_merge)
      : plan_(plan),
        pass_(pass),
        can_merge_(can_merge),
        found_(no_shortcuts(plan, pass)),
        state_(plan.buffers.size()) {}

  MergeShortcuts find() {
    for (const Stage& stage : pass_.stages) {
      for (int64_t i = stage.begin; i < stage.end; ++i) visit(stage.kind, i);
    }
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

  State& state_of(BufferId id) { return state_[static_cast<size_t>(to_index(id))]; }

  /// Handles a read of a buffer that was not filled because its merge was saved: the merge must be
  /// done as planned.
  void restore(BufferId id) {
    const State& state = state_of(id);
    const int64_t saved = state.saved_merge;
    if (saved == kNoMerge) return;
    const MergeItem& item = pass_.merges[static_cast<size_t>(saved)];
    found_.is_merged[static_cast<size_t>(saved)] = false;
    WrittenResult& written = found_.written[static_cast<size_t>(state.writer)][state.result];
    if (written.rounds) found_.rounds[static_cast<size_t>(saved)] = true;
    written = {item.partial};
    State& into = state_of(item.into);
    if (into.direct_merge == saved) into.direct_merge = kNoMerge;
    if (into.last_merge == saved) into.writer = kNoMerge;
    found_.is_written_once[static_cast<size_t>(to_index(item.into))] = false;
  }

  void touch(BufferId id) {
    if (id == kNoBuffer) return;
    restore(id);
    state_of(id) = {.touched_at = now_};
  }

  void visit(StageKind kind, int64_t i) {
    ++now_;
    switch (kind) {
      case StageKind::transfer:
        touch(pass_.transfers[i].from);
        touch(pass_.transfers[i].to);
        break;
      case StageKind::reorder:
        touch(pass_.reorders[i].from);
        touch(pass_.reorders[i].to);
        break;
      case StageKind::compute:
        compute(i);
        break;
      case StageKind::merge:
        merge(i);
        break;
      case StageKind::finish:
        finish(i);
        break;
    }
  }

  void compute(int64_t i) {
    const ComputeItem& item = pass_.computes[i];
    if (item.num_slices == 0) return;
    const auto& results = found_.written[static_cast<size_t>(i)];
    for (size_t r = 0; r < results.size(); ++r) {
      if (results[r].buffer == kNoBuffer) continue;
      State& state = state_of(results[r].buffer);
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
    const State& into = state_of(item.into);
    const bool is_first_result = partial.result == 0;  // out or dq
    return item.order > 0 && is_first_result && into.is_merged() &&
           into.touched_at < partial.touched_at && can_merge_ &&
           can_merge_(pass_.computes[static_cast<size_t>(partial.writer)]);
  }

  void merge(int64_t i) {
    const MergeItem& item = pass_.merges[i];
    if (item.partial == kNoBuffer) return touch(item.into);
    restore(item.partial);
    const State partial = state_of(item.partial);
    const bool may_save = partial.num_writers == 1 && is_alike(item.partial, item.into);
    const bool is_direct = may_save && item.order == 0 && !state_of(item.into).is_touched();
    const bool is_own = may_save && may_merge(item, partial);
    const bool is_saved = is_direct || is_own;
    if (is_saved) {
      found_.written[static_cast<size_t>(partial.writer)][partial.result] = {item.into, is_own};
      found_.is_merged[static_cast<size_t>(i)] = true;
    }
    state_of(item.partial) = {.touched_at = now_,
                              .writer = partial.writer,
                              .result = partial.result,
                              .saved_merge = is_saved ? i : kNoMerge};
    state_of(item.into) = {.touched_at = now_,
                           .writer = is_own ? partial.writer : kNoMerge,
                           .result = partial.result,
                           .last_merge = is_direct ? kNoMerge : i,
                           .direct_merge = is_direct ? i : kNoMerge};
  }

  void finish(int64_t i) {
    const BufferId buffer = pass_.finishes[i].buffer;
    const State state = state_of(buffer);
    const bool is_out = plan_.buffer(buffer).kind == BufferKind::out;
    const bool only_rounds =
        !is_out || plan_.scenario.attention.softmax_type == SoftmaxType::vanilla;
    // A first merge is a copy, which does not round; nor does a kernel that adds to dq.
    if (only_rounds && state.last_merge != kNoMerge && (is_out || state.writer == kNoMerge) &&
        pass_.merges[static_cast<size_t>(state.last_merge)].order > 0) {
      if (state.writer != kNoMerge) {
        found_.written[static_cast<size_t>(state.writer)][state.result].rounds = true;
      } else {
        found_.rounds[static_cast<size_t>(state.last_merge)] = true;
      }
      found_.is_finished[static_cast<size_t>(i)] = true;
    }
    if (only_rounds && is_out && state.direct_merge != kNoMerge)
      found_.is_written_once[static_cast<size_t>(to_index(buffer))] = true;
    touch(buffer);
  }

  const Plan& plan_;
  const Pass& pass_;
  const MergingKernels& can_merge_;
  MergeShortcuts found_;
  std::vector<State> state_;  // [buffer]
  int64_t now_ = 0;           // items so far
};

}  // namespace

MergeShortcuts no_shortcuts(const Plan& plan, const Pass& pass) {
  using Results = std::array<WrittenResult, 2>;
  MergeShortcuts none;
  for (const ComputeItem& item : pass.computes) {
    const bool is_backward = item.dq != kNoBuffer;
    none.written.push_back(is_backward ? Results{{{item.dq}, {item.dkv}}} : Results{{{item.out}}});
  }
  none.is_merged.assign(pass.merges.size(), false);
  none.rounds.assign(pass.merges.size(), false);
  none.is_finished.assign(pass.finishes.size(), false);
  none.is_written_once.assign(plan.buffers.size(), false);
  return none;
}

MergeShortcuts find_shortcuts(const Plan& plan, const Pass& pass, const MergingKernels& can_merge) {
  return ShortcutFinder(plan, pass, can_merge).find();
}

}  // namespace cpscope::kernels
