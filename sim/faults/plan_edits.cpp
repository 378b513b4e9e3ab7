#include "sim/faults/plan_edits.h"

#include "sim/plan/token_run.h"

namespace cpscope {

RunListId add_list(Plan& plan, const std::vector<int64_t>& ids) {
  const std::vector<TokenRun> runs = runs_of(ids);
  const auto first = static_cast<int64_t>(plan.runs.size());
  plan.runs.insert(plan.runs.end(), runs.begin(), runs.end());
  return plan.run_lists.push_back(
      {first, static_cast<int64_t>(runs.size()), static_cast<int64_t>(ids.size())});
}

void replace_slices(Plan& plan, int64_t forward_compute, const std::vector<BandSlice>& slices) {
  const ComputeItem edited = plan.forward.computes[static_cast<size_t>(forward_compute)];
  const auto first = static_cast<int64_t>(plan.slices.size());
  int64_t pairs = 0;
  for (const BandSlice& slice : slices) {
    if (count_pairs(slice) == 0) continue;
    pairs += count_pairs(slice);
    plan.slices.push_back(slice);
  }
  for (Pass* pass : {&plan.forward, &plan.backward}) {
    for (ComputeItem& item : pass->computes) {
      const bool is_same = item.rank == edited.rank && item.q_tokens == edited.q_tokens &&
                           item.kv_tokens == edited.kv_tokens && item.heads == edited.heads;
      if (!is_same) continue;
      item.first_slice = first;
      item.num_slices = static_cast<int64_t>(plan.slices.size()) - first;
      item.visible_pairs = pairs * item.heads.size();
    }
  }
}

}  // namespace cpscope
