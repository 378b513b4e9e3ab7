#include "kernels/lower/lowered_plan.h"

#include "kernels/lower/passes.h"
#include "sim/plan/item_uses.h"
#include "sim/plan/visit_items.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cpscope::kernels {
namespace {

constexpr std::array kPasses = {
    LoweringPass{"join_computes", "joins a rank's computes with own and with received keys",
                 join_computes},
    LoweringPass{"skip_reorders", "lets transfers write and read rows in a reorder's order",
                 skip_reorders},
    LoweringPass{"sum_gradients", "lets transfers begin and round sums of gradients",
                 sum_gradients},
    LoweringPass{"save_merges", "lets computes write and merge into accumulators", save_merges},
    LoweringPass{"narrow_outs", "stores each out that is written once in the dtype", narrow_outs},
    LoweringPass{"narrow_gradients", "stores gradients that are rounded anyway in the dtype",
                 narrow_gradients},
    LoweringPass{"add_shares", "adds up gradients of several ranks when all have arrived",
                 add_shares},
    LoweringPass{"copy_for_wires", "writes gradients that are sent in the dtype as well",
                 copy_for_wires},
    LoweringPass{"send_nearest_first", "sends to the nearest ranks first", send_nearest_first},
    LoweringPass{"cut_inputs", "cuts inputs into pieces of heads, and computes piece by piece",
                 cut_inputs},
    LoweringPass{"cut_results", "computes the last heads while the others' results are sent",
                 cut_results},
    LoweringPass{"narrow_received_outs", "stores each out that arrives in the dtype so",
                 narrow_received_outs},
    LoweringPass{"drop_unused_buffers", "gives buffers that no item uses no memory",
                 drop_unused_buffers},
};

/// A note for each item, with the item's own index.
template <class Note, class Item>
std::vector<Note> notes_of(const std::vector<Item>& items) {
  std::vector<Note> notes(items.size());
  for (size_t i = 0; i < notes.size(); ++i) notes[i].origin = static_cast<int64_t>(i);
  return notes;
}

}  // namespace

std::span<const LoweringPass> lowering_passes() { return kPasses; }

Result<std::vector<std::string>> parse_pass_names(std::string_view text) {
  std::vector<std::string> all, names;
  for (const LoweringPass& pass : kPasses) all.emplace_back(pass.name);
  if (text.empty()) return names;
  if (text == "all") return all;
  for (size_t begin = 0, end = 0; end < text.size(); begin = end + 1) {
    end = std::min(text.find(',', begin), text.size());
    const std::string_view name = text.substr(begin, end - begin);
    if (std::find(all.begin(), all.end(), name) == all.end())
      return make_error(ErrorKind::bad_input, fmt::format("no lowering pass is \"{}\"", name),
                        fmt::format("all, or some of {}", fmt::join(all, ", ")));
    names.emplace_back(name);
  }
  return names;
}

LoweredPlan as_planned(const Plan& plan) {
  LoweredPlan lowered;
  lowered.plan = plan;
  for (const Direction direction : kDirections) {
    const Pass& pass = plan.pass(direction);
    PassNotes& notes = lowered.notes[direction];
    notes.transfers = notes_of<TransferNote>(pass.transfers);
    notes.reorders = notes_of<ReorderNote>(pass.reorders);
    notes.computes = notes_of<ComputeNote>(pass.computes);
    notes.merges = notes_of<MergeNote>(pass.merges);
    notes.finishes = notes_of<FinishNote>(pass.finishes);
    notes.ranks.resize(plan.home.size());
    lowered.planned_computes[direction] = static_cast<int64_t>(pass.computes.size());
  }
  lowered.buffers.resize(plan.buffers.size());
  for (const FinishItem& item : plan.forward.finishes) {
    if (plan.buffer(item.buffer).kind == BufferKind::out) lowered.answers.push_back(item.buffer);
  }
  return lowered;
}

LoweredPlan lower_plan(const Plan& plan, const Lowering& lowering) {
  LoweredPlan lowered = as_planned(plan);
  if (!lowering.saves_work) return lowered;
  for (const LoweringPass& pass : lowering_passes()) {
    const auto& without = lowering.without;
    if (std::find(without.begin(), without.end(), pass.name) == without.end())
      pass.run(lowered, lowering);
  }
  return lowered;
}

void drop_unused_buffers(LoweredPlan& lowered, const Lowering& /*lowering*/) {
  Plan& plan = lowered.plan;
  IdVector<BufferId, bool> is_used(plan.buffers.size(), false);
  const auto use = [&](BufferId id) { is_used[id] = true; };
  for (const HomeBuffers& home : plan.home) visit_buffers(home, use);
  for (const Direction direction : kDirections) {
    for_each_item(plan, direction,
                  [&](const ItemId&, const auto& item) { visit_buffers(item, use); });
  }
  for (const BufferId id : plan.buffers.ids()) {
    if (!is_used[id]) plan.buffers[id].rows = 0;
  }
}

std::vector<JoinedPart> joined_parts(const ComputeNote& note, const ComputeItem& item,
                                     const Plan& plan) {
  if (!note.parts.empty()) return note.parts;
  return {{note.origin, item.visible_pairs, {{0, plan.rows(item.kv_tokens), 1}}}};
}

}  // namespace cpscope::kernels
