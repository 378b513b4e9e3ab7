#include "sim/run/kept_weights.h"

#include "sim/base/parallel.h"
#include "sim/plan/token_run.h"
#include "sim/run/philox.h"
#include "sim/run/run_inputs.h"
#include "sim/scenario/score_terms.h"

#include <vector>

namespace cpscope {

KeptWeights draw_by_item(const Plan& plan) {
  KeptWeights kept;
  const Attention& attention = plan.scenario.attention;
  if (!draws_by_item(attention)) return kept;
  const Batch& batch = plan.scenario.batch;
  kept.keys = batch.kv_lengths;
  for (size_t s = 0; s < batch.lengths.size(); ++s) {
    kept.queries.push_back(batch.lengths[s]);
    kept.first.push_back(s == 0 ? 0
                                : kept.first.back() + attention.heads * batch.lengths[s - 1] *
                                                          batch.kv_lengths[s - 1]);
  }
  const int64_t cells =
      kept.first.back() + attention.heads * batch.lengths.back() * batch.kv_lengths.back();
  kept.is_kept.assign(static_cast<size_t>(cells), 0);
  const DropoutRule rule = dropout_rule(attention, plan.scenario.numerics);
  const std::vector<TokenPlace> queries = places_of_ids(plan.layout.slots, Side::q),
                                keys = places_of_ids(plan.layout.slots, Side::kv);
  // Items cover different pairs, so that their order does not matter.
  for_each_index(std::ssize(plan.forward.computes), [&](int64_t number) {
    const ComputeItem& item = plan.forward.computes[static_cast<size_t>(number)];
    if (item.num_slices == 0) return;
    const std::vector<int64_t> rows = expand(plan.list(item.q_tokens)),
                               columns = expand(plan.list(item.kv_tokens));
    for (const BandSlice& slice : plan.slices_of(item)) {
      for (int64_t row = slice.q0; row < slice.q1; ++row) {
        const TokenPlace& query = queries[static_cast<size_t>(rows[static_cast<size_t>(row)])];
        const ColumnRange range = columns_of_row(slice, row);
        for (int64_t column = range.begin; column < range.end; ++column) {
          const TokenPlace& key = keys[static_cast<size_t>(columns[static_cast<size_t>(column)])];
          for (int32_t head = item.heads.begin; head < item.heads.end; ++head) {
            const auto words = philox(
                {static_cast<uint32_t>(column / 4), static_cast<uint32_t>(row),
                 static_cast<uint32_t>(head - item.heads.begin), static_cast<uint32_t>(number)},
                {rule.seed_low, rule.seed_high});
            kept.is_kept[kept.cell(query.sequence, head, query.position, key.position)] =
                words[static_cast<size_t>(column % 4)] < rule.threshold ? 1 : 0;
          }
        }
      }
    }
  });
  return kept;
}

}  // namespace cpscope
