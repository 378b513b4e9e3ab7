#include "kernels/lower/gradient_shares.h"

#include "kernels/lower/item_buffers.h"
#include "kernels/rows/row_sum.h"

#include <algorithm>
#include <set>

namespace cpscope::kernels {
namespace {

/// The transfers into a buffer.
struct Landings {
  std::vector<size_t> items;
  std::set<size_t> stages;
};

std::vector<Landings> landings_of(const GradientPass& of) {
  std::vector<Landings> landings(of.plan.buffers.size());
  for (size_t s = 0; s < of.pass.stages.size(); ++s) {
    const Stage& stage = of.pass.stages[s];
    for (int64_t i = stage.begin; stage.kind == StageKind::transfer && i < stage.end; ++i) {
      Landings& here = landings[place_of(of.transfers[static_cast<size_t>(i)].to)];
      here.items.push_back(static_cast<size_t>(i));
      here.stages.insert(s);
    }
  }
  return landings;
}

}  // namespace

std::vector<bool> find_gradient_shares(const GradientPass& of) {
  std::vector<bool> is_share(of.transfers.size(), false);
  const Numerics& numerics = of.plan.scenario.numerics;
  const Attention& attention = of.plan.scenario.attention;
  if (element_bytes(numerics.dtype) != 2 || numerics.accumulate == Accumulate::dtype ||
      attention.head_dim_qk % RowSum::kLanesAtOnce != 0 ||
      attention.head_dim_v % RowSum::kLanesAtOnce != 0)
    return is_share;
  const std::vector<Landings> landings = landings_of(of);
  for (size_t b = 0; b < landings.size(); ++b) {
    const BufferSpec& spec = of.plan.buffers[b];
    const std::vector<size_t>& items = landings[b].items;
    if (!of.landings.is_sum[b] || spec.kind != BufferKind::dkv || landings[b].stages.size() != 1 ||
        items.size() > RowSum::kMostShares)
      continue;
    const auto has_all_heads = [&](size_t i) { return of.transfers[i].heads == spec.heads; };
    const auto comes = [&](size_t i) { return of.transfers[i].src != of.transfers[i].dst; };
    // Values that stay on their rank must not be rounded.
    const auto is_exact = [&](size_t i) { return comes(i) || !of.landings.roundings[i].values; };
    if (!std::all_of(items.begin(), items.end(), has_all_heads) ||
        !std::all_of(items.begin(), items.end(), is_exact) ||
        std::none_of(items.begin(), items.end(), comes))
      continue;
    for (const size_t item : items) is_share[item] = true;
  }
  return is_share;
}

std::vector<bool> find_wire_copies(const GradientPass& of,
                                   const std::function<bool(const ComputeItem&)>& writes_dtype,
                                   const std::vector<bool>& is_narrow) {
  std::vector<int32_t> num_writers(of.plan.buffers.size(), 0);
  std::vector<bool> is_sent(of.plan.buffers.size(), false), is_fit(of.plan.buffers.size(), true);
  const auto leave = [&](BufferId id) {
    if (id != kNoBuffer) is_fit[place_of(id)] = false;
  };
  for (const TransferItem& item : of.transfers) {
    leave(item.to);
    if (item.src != item.dst && !item.wire_fp32) is_sent[place_of(item.from)] = true;
  }
  for (const HomeBuffers& home : of.plan.home) leave(home.dkv);
  const auto leave_item = [&](StageKind kind, size_t i) { visit_buffers(of.pass, kind, i, leave); };
  for (size_t i = 0; i < of.pass.reorders.size(); ++i) {
    if (of.reorders[i] == ReorderSaving::none) leave_item(StageKind::reorder, i);
  }
  for (size_t i = 0; i < of.pass.merges.size(); ++i) {
    if (!of.shortcuts.is_merged[i] && !of.landings.is_merged[i]) leave_item(StageKind::merge, i);
  }
  for (size_t i = 0; i < of.pass.finishes.size(); ++i) {
    if (!of.landings.is_finished[i]) leave(of.pass.finishes[i].buffer);
  }
  for (size_t i = 0; i < of.pass.computes.size(); ++i) {
    const ComputeItem& item = of.pass.computes[i];
    const BufferId buffer = of.shortcuts.written[i][1].buffer;
    ++num_writers[place_of(buffer)];
    if (item.num_slices == 0 || !writes_dtype(item)) leave(buffer);
  }
  std::vector<bool> found(of.plan.buffers.size(), false);
  for (size_t b = 0; b < found.size(); ++b) {
    found[b] = of.plan.buffers[b].kind == BufferKind::dkv && !is_narrow[b] && is_fit[b] &&
               is_sent[b] && num_writers[b] == 1;
  }
  return found;
}

}  // namespace cpscope::kernels
