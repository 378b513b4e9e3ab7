#include "kernels/narrow_buffers.h"

#include "kernels/item_buffers.h"

namespace cpscope::kernels {
namespace {

size_t at(BufferId id) { return static_cast<size_t>(to_index(id)); }

/// What happens to a buffer in a backward pass.
struct Uses {
  int32_t num_writers = 0;     // compute items
  bool has_dtype = true;       // they can all write the dtype
  bool is_calculated = false;  // merged, or gathered by a reorder of its own
  bool is_finished = false;
  int32_t num_received = 0, num_sent = 0;  // transfers
  bool comes_rounded = true;               // by all that it receives, which replaces
  bool goes_rounded = true;                // by all that it sends
};

/// Is what lands rounded to the dtype, whatever it was?
bool is_rounded(const TransferItem& item, const Rounding& rounding) {
  const bool by_wire = item.link != LinkClass::self && !item.wire_fp32;
  return by_wire || rounding.values || (rounding.sums && item.landing == Landing::replace);
}

std::vector<Uses> find_uses(const GradientPass& of,
                            const std::function<bool(const ComputeItem&)>& writes_dtype) {
  std::vector<Uses> uses(of.plan.buffers.size());
  const auto calculate = [&](BufferId id) { uses[at(id)].is_calculated = true; };
  for (size_t i = 0; i < of.pass.computes.size(); ++i) {
    const ComputeItem& item = of.pass.computes[i];
    for (const BufferId id : of.shortcuts.written[i]) {
      Uses& written = uses[at(id)];
      ++written.num_writers;
      written.has_dtype &= item.num_slices > 0 && writes_dtype(item);
    }
  }
  for (size_t i = 0; i < of.pass.merges.size(); ++i) {
    if (!of.shortcuts.is_merged[i] && !of.landings.is_merged[i])
      visit_buffers(of.pass.merges[i], calculate);
  }
  for (size_t i = 0; i < of.pass.reorders.size(); ++i) {
    if (of.reorders[i] == ReorderSaving::none) visit_buffers(of.pass.reorders[i], calculate);
  }
  for (const FinishItem& item : of.pass.finishes) uses[at(item.buffer)].is_finished = true;
  for (size_t i = 0; i < of.transfers.size(); ++i) {
    const TransferItem& item = of.transfers[i];
    const bool rounds = is_rounded(item, of.landings.roundings[i]);
    Uses &from = uses[at(item.from)], &to = uses[at(item.to)];
    ++from.num_sent;
    from.goes_rounded &= rounds;
    ++to.num_received;
    to.comes_rounded &= rounds && item.landing == Landing::replace;
  }
  return uses;
}

}  // namespace

std::vector<bool> find_narrow_outs(const Plan& plan, const MergeShortcuts& shortcuts,
                                   const std::function<bool(const ComputeItem&)>& writes_dtype) {
  std::vector<bool> is_narrow = shortcuts.is_written_once;
  for (size_t i = 0; i < plan.forward.computes.size(); ++i) {
    const ComputeItem& item = plan.forward.computes[i];
    if (item.num_slices > 0 && writes_dtype && writes_dtype(item)) continue;
    is_narrow[at(shortcuts.written[i][0])] = false;
  }
  return is_narrow;
}

void spread_narrow_outs(const Plan& plan, std::vector<bool>& is_narrow) {
  std::vector<bool> is_filled(plan.buffers.size(), false);
  const auto fill = [&](BufferId from, BufferId to, bool replaces) {
    if (plan.buffer(to).kind != BufferKind::out) return;
    const bool was_narrow = is_filled[at(to)] ? is_narrow[at(to)] : true;
    is_narrow[at(to)] = replaces && was_narrow && is_narrow[at(from)];
    is_filled[at(to)] = true;
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
      if (id != kNoBuffer) is_home[at(id)] = true;
    }
  }
  const std::vector<Uses> all = find_uses(pass, writes_dtype);
  for (size_t b = 0; b < all.size(); ++b) {
    const BufferKind kind = pass.plan.buffers[b].kind;
    const Uses& uses = all[b];
    if ((kind != BufferKind::dq && kind != BufferKind::dkv) || uses.is_calculated) continue;
    const bool is_written = uses.num_writers == 1 && uses.has_dtype && uses.num_received == 0 &&
                            uses.goes_rounded &&
                            (uses.is_finished || (!is_home[b] && uses.num_sent > 0));
    const bool is_received = uses.num_writers == 0 && uses.num_received > 0 && uses.comes_rounded;
    if (is_written || is_received) is_narrow[b] = true;
  }
}

}  // namespace cpscope::kernels
