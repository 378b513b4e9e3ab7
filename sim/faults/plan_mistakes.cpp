#include "sim/faults/plan_mistakes.h"

#include "sim/faults/fault.h"
#include "sim/plan/check/check_rows.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

namespace cpscope {
namespace {

bool has_heads(HeadRange all, HeadRange part) {
  return part.begin >= all.begin && part.end <= all.end;
}

/// True if a buffer of this rank has so many rows.
bool has_rows(const Plan& plan, BufferId id, RankId rank, int64_t rows) {
  const BufferSpec& buffer = plan.buffer(id);
  return buffer.rank == rank && rows <= buffer.rows;
}

bool stays_in_buffers(const Plan& plan, const ComputeItem& item, Direction direction) {
  const int64_t rows = plan.rows(item.q_tokens), keys = plan.rows(item.kv_tokens);
  const bool has_backward = direction == Direction::backward;
  for (const BufferId id :
       {item.q, item.out, has_backward ? item.d_out : item.q, has_backward ? item.dq : item.q})
    if (!has_rows(plan, id, item.rank, rows)) return false;
  for (const BufferId id : {item.kv, has_backward ? item.dkv : item.kv})
    if (!has_rows(plan, id, item.rank, keys)) return false;
  const HeadRange kv_heads = kv_heads_of(plan.scenario.attention, item.heads);
  if (!has_heads(plan.buffer(item.q).heads, item.heads) ||
      !has_heads(plan.buffer(item.out).heads, item.heads) ||
      !has_heads(plan.buffer(item.kv).heads, kv_heads))
    return false;
  const auto slices = plan.slices_of(item);
  return std::all_of(slices.begin(), slices.end(), [&](const BandSlice& slice) {
    return slice.q0 >= 0 && slice.k0 >= 0 && slice.q1 <= rows && slice.k1 <= keys;
  });
}

bool stays_in_buffers(const Plan& plan, const ReorderItem& item) {
  const auto runs = plan.list(item.order);
  const int64_t rows = plan.buffer(item.from).rows;
  return plan.rows(item.order) <= plan.buffer(item.to).rows &&
         std::all_of(runs.begin(), runs.end(),
                     [&](const TokenRun& run) { return run.count() == 0 || run.last() < rows; });
}

/// True if executors find what is stored by pair, a bias or a framework's own draws: only pairs of
/// one sequence have such cells, and those of a proved plan are.
bool meets_own_pairs(const Plan& healthy, const Plan& faulty) {
  const Attention& attention = healthy.scenario.attention;
  return (attention.bias == BiasShape::none &&
          attention.dropout_mode == DropoutMode::split_invariant) ||
         faulty.slices == healthy.slices;
}

}  // namespace

bool stays_in_buffers(const Plan& healthy, const Plan& faulty) {
  if (faulty.layout.slots.tokens != healthy.layout.slots.tokens ||
      faulty.layout.slots.kv_tokens != healthy.layout.slots.kv_tokens)
    return false;
  for (const auto check : {check_structure, check_buffers})
    if (!check(faulty).ok) return false;
  for (const Direction direction : kDirections) {
    const Pass& pass = faulty.pass(direction);
    for (const ComputeItem& item : pass.computes)
      if (!stays_in_buffers(faulty, item, direction)) return false;
    for (const ReorderItem& item : pass.reorders)
      if (!stays_in_buffers(faulty, item)) return false;
  }
  return true;
}

void visit_plan_mistakes(const Plan& healthy, const std::function<bool(PlanMistake)>& take) {
  bool goes_on = true;
  const auto visit = [&](const Fault& fault) {
    const TakePlanted give = [&](PlantedFault planted) {
      if (planted.plan &&
          !(meets_own_pairs(healthy, *planted.plan) && stays_in_buffers(healthy, *planted.plan)))
        return true;
      goes_on = take({.cause = fault.cause,
                      .text = std::move(planted.what),
                      .layout = fault.layout,
                      .is_of_backward = !planted.site.is_load &&
                                        planted.site.item.direction == Direction::backward,
                      .plan = std::move(planted.plan),
                      .inputs = std::move(planted.inputs)});
      return goes_on;
    };
    if (fault.plant_in_all_places != nullptr) {
      fault.plant_in_all_places(healthy, give);
    } else if (std::optional<PlantedFault> planted = fault.plant(healthy)) {
      give(*std::move(planted));
    }
  };
  // Of mistakes that give the same answer the first is named: one that has no place to choose.
  for (const bool has_places : {false, true}) {
    for (const Fault& fault : fault_catalogue()) {
      if (goes_on && !fault.cause.empty() && (fault.plant_in_all_places != nullptr) == has_places)
        visit(fault);
    }
  }
}

}  // namespace cpscope
