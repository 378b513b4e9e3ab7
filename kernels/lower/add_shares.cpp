#include "kernels/lower/pass_writer.h"
#include "kernels/lower/passes.h"
#include "kernels/rows/row_sum.h"
#include "sim/plan/item_uses.h"

#include <algorithm>
#include <set>

namespace cpscope::kernels {
namespace {

/// The transfers into a buffer.
struct Landings {
  std::vector<size_t> items;
  std::set<size_t> stages;
};

IdVector<BufferId, Landings> landings_of(const Plan& plan) {
  IdVector<BufferId, Landings> landings(plan.buffers.size());
  const Pass& pass = plan.backward;
  for (size_t s = 0; s < pass.stages.size(); ++s) {
    const Stage& stage = pass.stages[s];
    for (int64_t i = stage.begin; stage.kind == StageKind::transfer && i < stage.end; ++i) {
      Landings& here = landings[pass.transfers[static_cast<size_t>(i)].to];
      here.items.push_back(static_cast<size_t>(i));
      here.stages.insert(s);
    }
  }
  return landings;
}

/// True if a kernel can add up rows of gradients of the scenario.
bool can_add_rows(const Scenario& scenario) {
  return element_bytes(scenario.numerics.dtype) == 2 &&
         scenario.numerics.accumulate != Accumulate::dtype &&
         scenario.attention.head_dim_qk % RowSum::kLanesAtOnce == 0 &&
         scenario.attention.head_dim_v % RowSum::kLanesAtOnce == 0;
}

/// True if all transfers into a sum arrive in one stage and can be added at once.
bool are_shares(const LoweredPlan& lowered, BufferId sum, const Landings& landings) {
  const BufferSpec& spec = lowered.plan.buffer(sum);
  if (spec.kind != BufferKind::dkv || landings.stages.size() != 1 ||
      landings.items.size() > RowSum::kMostShares)
    return false;
  const auto item_of = [&](size_t i) -> const TransferItem& {
    return lowered.plan.backward.transfers[i];
  };
  const auto comes = [&](size_t i) { return item_of(i).src != item_of(i).dst; };
  const auto is_fit = [&](size_t i) {
    // Values that stay on their rank must not be rounded.
    return item_of(i).heads == spec.heads &&
           (comes(i) || !lowered.notes.backward.transfers[i].rounding.values);
  };
  return std::all_of(landings.items.begin(), landings.items.end(), is_fit) &&
         std::any_of(landings.items.begin(), landings.items.end(), comes);
}

}  // namespace

void add_shares(LoweredPlan& lowered, const Lowering& lowering) {
  if (!lowering.adds_shares || !can_add_rows(lowered.plan.scenario)) return;
  const IdVector<BufferId, Landings> landings = landings_of(lowered.plan);
  IdVector<BufferId, bool> is_shared(landings.size(), false);
  for (const BufferId id : landings.ids()) {
    if (!lowered.buffers[id].is_sum || !are_shares(lowered, id, landings[id])) continue;
    for (const size_t item : landings[id].items) {
      lowered.notes.backward.transfers[item].is_share = true;
      lowered.plan.backward.transfers[item].landing = Landing::add;
    }
    // Their sum is not zeroed first, and is rounded when it is written.
    is_shared[id] = lowered.buffers[id].is_narrow = true;
  }
  std::vector<bool> is_zeroing;
  for (const MergeItem& item : lowered.plan.backward.merges)
    is_zeroing.push_back(is_shared[item.into]);
  keep_items(lowered, Direction::backward,
             [&](StageKind kind, size_t i) { return kind != StageKind::merge || !is_zeroing[i]; });
  drop_narrow_finishes(lowered, Direction::backward);
}

void copy_for_wires(LoweredPlan& lowered, const Lowering& lowering) {
  if (!lowering.adds_shares || !lowering.writes_dtype) return;
  const Plan& plan = lowered.plan;
  IdVector<BufferId, int32_t> num_writers(plan.buffers.size(), 0);
  IdVector<BufferId, bool> is_sent(plan.buffers.size(), false), is_fit(plan.buffers.size(), true);
  const auto leave = [&](BufferId id) { is_fit[id] = false; };
  for (const HomeBuffers& home : plan.home) {
    if (home.dkv != kNoBuffer) leave(home.dkv);
  }
  const auto note = Overload{[&](const ItemId&, const TransferItem& item) {
                               leave(item.to);
                               if (item.src != item.dst && !item.wire_fp32)
                                 is_sent[item.from] = true;
                             },
                             [&](const ItemId&, const ComputeItem& item) {
                               ++num_writers[item.dkv];
                               if (item.num_slices == 0 || !lowering.writes_dtype(item))
                                 leave(item.dkv);
                             },
                             [&](const ItemId&, const auto& item) { visit_buffers(item, leave); }};
  for_each_item(plan, Direction::backward, note);
  for (const BufferId id : plan.buffers.ids()) {
    BufferNote& buffer = lowered.buffers[id];
    buffer.has_wire_copy = plan.buffer(id).kind == BufferKind::dkv && !buffer.is_narrow &&
                           is_fit[id] && is_sent[id] && num_writers[id] == 1;
  }
}

}  // namespace cpscope::kernels
