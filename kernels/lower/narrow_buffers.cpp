#include "kernels/lower/narrow_buffers.h"

#include "kernels/lower/item_buffers.h"

namespace cpscope::kernels {
namespace {

/// True if the values at the destination are rounded to the dtype, whatever they were before.
bool is_rounded(const TransferItem& item, const Rounding& rounding) {
  const bool by_wire = item.link != LinkClass::self && !item.wire_fp32;
  return by_wire || rounding.values || (rounding.sums && item.landing == Landing::replace);
}

/// Visits a backward pass and finds buffers whose every number is rounded before anything is added
/// to it: a number that is only rounded later may be rounded immediately.
class NarrowGradients {
 public:
  NarrowGradients(const GradientPass& of,
                  const std::function<bool(const ComputeItem&)>& writes_dtype)
      : of_(of), writes_dtype_(writes_dtype), states_(of.plan.buffers.size()) {
    for (const Stage& stage : of.pass.stages) {
      for (int64_t i = stage.begin; i < stage.end; ++i) visit(stage.kind, static_cast<size_t>(i));
    }
  }

  /// is_home: the final content of the buffer is read.
  bool may_be_narrow(BufferId id, bool is_home) const {
    const State& state = states_[place_of(id)];
    const bool is_known = state.holds == Holds::rounded || (!is_home && state.holds == Holds::sent);
    return state.is_fit && state.is_written && is_known;
  }

 private:
  /// Content of a buffer: numbers of the dtype; other numbers; or other numbers that were sent
  /// rounded, which must not be read again.
  enum class Holds { rounded, exact, sent };

  struct State {
    Holds holds = Holds::rounded;
    bool is_written = false;
    bool is_fit = true;
  };

  State& state_of(BufferId id) { return states_[place_of(id)]; }

  void visit(StageKind kind, size_t i) {
    switch (kind) {
      case StageKind::transfer:
        send(of_.transfers[i], of_.landings.roundings[i]);
        break;
      case StageKind::reorder:
        if (of_.reorders[i] != ReorderSaving::none) break;
        visit_buffers(of_.pass.reorders[i], [&](BufferId id) { state_of(id).is_fit = false; });
        break;
      case StageKind::compute:
        compute(i);
        break;
      case StageKind::merge:
        if (!of_.shortcuts.is_merged[i] && !of_.landings.is_merged[i]) merge(of_.pass.merges[i]);
        break;
      case StageKind::finish:
        state_of(of_.pass.finishes[i].buffer).holds = Holds::rounded;
        break;
    }
  }

  void compute(size_t i) {
    const ComputeItem& item = of_.pass.computes[i];
    for (const WrittenResult& result : of_.shortcuts.written[i]) {
      State& state = state_of(result.buffer);
      const bool has_dtype = item.num_slices > 0 && writes_dtype_(item);
      state.is_fit &= has_dtype && state.holds == Holds::rounded;
      state.holds = Holds::exact;
      state.is_written = true;
    }
  }

  void merge(const MergeItem& item) {
    State& into = state_of(item.into);
    if (item.partial != kNoBuffer) state_of(item.partial).is_fit = false;
    into.is_fit &= into.holds == Holds::rounded;
    into.holds = item.partial == kNoBuffer ? Holds::rounded : Holds::exact;
    into.is_written = true;
  }

  void send(const TransferItem& item, const Rounding& rounding) {
    const bool rounds = is_rounded(item, rounding);
    State &from = state_of(item.from), &to = state_of(item.to);
    from.is_fit &= rounds || from.holds == Holds::rounded;
    if (from.holds == Holds::exact) from.holds = Holds::sent;
    to.is_fit &= rounds && item.landing == Landing::replace && to.holds != Holds::exact;
    to.holds = Holds::rounded;
    to.is_written = true;
  }

  const GradientPass& of_;
  const std::function<bool(const ComputeItem&)>& writes_dtype_;
  std::vector<State> states_;  // [buffer]
};

}  // namespace

std::vector<bool> find_narrow_outs(const Plan& plan, const MergeShortcuts& shortcuts,
                                   const std::function<bool(const ComputeItem&)>& writes_dtype) {
  std::vector<bool> is_narrow = shortcuts.is_written_once;
  for (size_t i = 0; i < plan.forward.computes.size(); ++i) {
    const ComputeItem& item = plan.forward.computes[i];
    if (item.num_slices > 0 && writes_dtype && writes_dtype(item)) continue;
    is_narrow[place_of(shortcuts.written[i][0].buffer)] = false;
  }
  return is_narrow;
}

void spread_narrow_outs(const Plan& plan, std::vector<bool>& is_narrow) {
  std::vector<bool> is_filled(plan.buffers.size(), false);
  const auto fill = [&](BufferId from, BufferId to, bool replaces) {
    if (plan.buffer(to).kind != BufferKind::out) return;
    const bool was_narrow = is_filled[place_of(to)] ? is_narrow[place_of(to)] : true;
    is_narrow[place_of(to)] = replaces && was_narrow && is_narrow[place_of(from)];
    is_filled[place_of(to)] = true;
  };
  for (const Stage& stage : plan.forward.stages) {
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      const auto item = static_cast<size_t>(i);
      if (stage.kind == StageKind::transfer) {
        const TransferItem& transfer = plan.forward.transfers[item];
        fill(transfer.from, transfer.to, transfer.landing == Landing::replace);
      } else if (stage.kind == StageKind::reorder) {
        fill(plan.forward.reorders[item].from, plan.forward.reorders[item].to, true);
      }
    }
  }
}

void find_narrow_gradients(const GradientPass& pass,
                           const std::function<bool(const ComputeItem&)>& writes_dtype,
                           std::vector<bool>& is_narrow) {
  if (!writes_dtype) return;
  std::vector<bool> is_home(pass.plan.buffers.size(), false);
  for (const HomeBuffers& home : pass.plan.home) {
    for (const BufferId id : {home.dq, home.dkv}) {
      if (id != kNoBuffer) is_home[place_of(id)] = true;
    }
  }
  const NarrowGradients found(pass, writes_dtype);
  for (size_t b = 0; b < is_home.size(); ++b) {
    const BufferKind kind = pass.plan.buffers[b].kind;
    if ((kind == BufferKind::dq || kind == BufferKind::dkv) &&
        found.may_be_narrow(BufferId{static_cast<int32_t>(b)}, is_home[b]))
      is_narrow[b] = true;
  }
}

}  // namespace cpscope::kernels
