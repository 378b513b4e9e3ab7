#include "kernels/lower/pass_writer.h"
#include "kernels/lower/passes.h"
#include "sim/plan/item_uses.h"

// Results that memory may hold in the dtype, where the plan has fp32 that is rounded later. The
// results are the same, bit for bit.

namespace cpscope::kernels {
namespace {

/// Finds each `out` that one compute item writes, that a finish then rounds, and that is only read
/// afterwards.
class NarrowOuts {
 public:
  NarrowOuts(const Plan& plan, const AskKernel& writes_dtype)
      : writes_dtype_(writes_dtype), states_(plan.buffers.size(), State::untouched) {
    for_each_item(plan, Direction::forward, [&](const ItemId&, const auto& item) { visit(item); });
  }

  bool may_be_narrow(BufferId id) const { return states_[id] == State::finished; }

 private:
  enum class State { untouched, computed, finished, unfit };

  void visit(const ComputeItem& item) {
    if (item.num_slices == 0) return;
    const bool is_first = states_[item.out] == State::untouched && writes_dtype_(item);
    states_[item.out] = is_first ? State::computed : State::unfit;
  }
  void visit(const FinishItem& item) {
    State& state = states_[item.buffer];
    state = state == State::computed ? State::finished : State::unfit;
  }
  void visit(const TransferItem& item) {
    read(item.from);
    states_[item.to] = State::unfit;
  }
  void visit(const ReorderItem& item) {
    read(item.from);
    states_[item.to] = State::unfit;
  }
  void visit(const MergeItem& item) {
    visit_buffers(item, [&](BufferId id) { states_[id] = State::unfit; });
  }
  /// Values that are read before they are rounded must stay as they are.
  void read(BufferId id) {
    if (states_[id] == State::computed) states_[id] = State::unfit;
  }

  const AskKernel& writes_dtype_;
  IdVector<BufferId, State> states_;
};

/// True if the values at the destination are rounded to the dtype, whatever they were before.
bool is_rounded(const TransferItem& item, const Rounding& rounding) {
  const bool by_wire = item.link != LinkClass::self && !item.wire_fp32;
  return by_wire || rounding.values || (rounding.sums && item.landing == Landing::replace);
}

/// Visits a backward pass and finds buffers whose every number is rounded before anything is added
/// to it: a number that is only rounded later may be rounded immediately.
class NarrowGradients {
 public:
  NarrowGradients(const LoweredPlan& lowered, const AskKernel& writes_dtype)
      : notes_(lowered.notes.backward),
        writes_dtype_(writes_dtype),
        states_(lowered.plan.buffers.size()) {
    for_each_item(lowered.plan, Direction::backward, [&](const ItemId& id, const auto& item) {
      visit(static_cast<size_t>(id.index), item);
    });
  }

  /// is_home: the final content of the buffer is read.
  bool may_be_narrow(BufferId id, bool is_home) const {
    const State& state = states_[id];
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

  void visit(size_t i, const TransferItem& item) {
    const bool rounds = is_rounded(item, notes_.transfers[i].rounding);
    State &from = states_[item.from], &to = states_[item.to];
    from.is_fit &= rounds || from.holds == Holds::rounded;
    if (from.holds == Holds::exact) from.holds = Holds::sent;
    to.is_fit &= rounds && item.landing == Landing::replace && to.holds != Holds::exact;
    to.holds = Holds::rounded;
    to.is_written = true;
  }
  void visit(size_t /*index*/, const ReorderItem& item) {
    visit_buffers(item, [&](BufferId id) { states_[id].is_fit = false; });
  }
  void visit(size_t /*index*/, const ComputeItem& item) {
    for (const BufferId id : {item.dq, item.dkv}) {
      State& state = states_[id];
      const bool has_dtype = item.num_slices > 0 && writes_dtype_(item);
      state.is_fit &= has_dtype && state.holds == Holds::rounded;
      state.holds = Holds::exact;
      state.is_written = true;
    }
  }
  void visit(size_t i, const MergeItem& item) {
    State& into = states_[item.into];
    if (item.partial != kNoBuffer) states_[item.partial].is_fit = false;
    into.is_fit &= into.holds == Holds::rounded;
    const bool is_rounded = item.partial == kNoBuffer || notes_.merges[i].rounds;
    into.holds = is_rounded ? Holds::rounded : Holds::exact;
    into.is_written = true;
  }
  void visit(size_t /*index*/, const FinishItem& item) {
    states_[item.buffer].holds = Holds::rounded;
  }

  const PassNotes& notes_;
  const AskKernel& writes_dtype_;
  IdVector<BufferId, State> states_;
};

}  // namespace

void narrow_outs(LoweredPlan& lowered, const Lowering& lowering) {
  const Plan& plan = lowered.plan;
  if (!lowering.writes_dtype || plan.scenario.attention.softmax_type != SoftmaxType::vanilla)
    return;
  const NarrowOuts found(plan, lowering.writes_dtype);
  for (const BufferId id : plan.buffers.ids()) {
    if (plan.buffer(id).kind == BufferKind::out)
      lowered.buffers[id].is_narrow = found.may_be_narrow(id);
  }
  drop_narrow_finishes(lowered, Direction::forward);
}

void narrow_gradients(LoweredPlan& lowered, const Lowering& lowering) {
  if (!lowering.writes_dtype) return;
  const Plan& plan = lowered.plan;
  const IdVector<BufferId, bool> is_home = home_gradients(plan);
  const NarrowGradients found(lowered, lowering.writes_dtype);
  for (const BufferId id : plan.buffers.ids()) {
    const BufferKind kind = plan.buffer(id).kind;
    if ((kind == BufferKind::dq || kind == BufferKind::dkv) && found.may_be_narrow(id, is_home[id]))
      lowered.buffers[id].is_narrow = true;
  }
  drop_narrow_finishes(lowered, Direction::backward);
}

void narrow_received_outs(LoweredPlan& lowered, const Lowering& /*lowering*/) {
  const Plan& plan = lowered.plan;
  IdVector<BufferId, bool> is_filled(plan.buffers.size(), false);
  const auto fill = [&](BufferId from, BufferId to, bool replaces) {
    if (plan.buffer(to).kind != BufferKind::out) return;
    bool& is_narrow = lowered.buffers[to].is_narrow;
    const bool was_narrow = !is_filled[to] || is_narrow;
    is_narrow = replaces && was_narrow && lowered.buffers[from].is_narrow;
    is_filled[to] = true;
  };
  for_each_item(
      plan, Direction::forward,
      Overload{[&](const ItemId&, const TransferItem& item) {
                 fill(item.from, item.to, item.landing == Landing::replace);
               },
               [&](const ItemId&, const ReorderItem& item) { fill(item.from, item.to, true); },
               [](const ItemId&, const auto&) {}});
}

}  // namespace cpscope::kernels
