#include "gui/app/move_tokens.h"

#include "sim/plan/order/order_import.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

namespace cpscope::gui {
namespace {

using IdsByRank = std::vector<std::vector<int64_t>>;

/// The ids of all ranks, without a tail behind the last slot, which an order does not have.
IdsByRank list_ids(const PlanIndex& plan, Side side) {
  const auto& sequences = plan.plan().layout.slots.sequences;
  const int64_t end = sequences.empty() ? 0 : sequences.back().side(side).end();
  IdsByRank ids;
  for (const std::vector<TokenRun>& runs : plan.plan().layout.runs(side)) {
    std::vector<int64_t>& own = ids.emplace_back();
    for (const TokenRun& run : runs)
      for (int64_t n = 0; n < run.count(); ++n)
        if (run.at(n) < end) own.push_back(run.at(n));
  }
  return ids;
}

void give_ids(IdsByRank& ids, const TokenRange& tokens, int32_t rank) {
  std::vector<int64_t> moved;
  for (std::vector<int64_t>& own : ids) {
    const auto is_moved = [&](int64_t id) { return id >= tokens.begin && id < tokens.end; };
    std::copy_if(own.begin(), own.end(), std::back_inserter(moved), is_moved);
    std::erase_if(own, is_moved);
  }
  std::vector<int64_t>& own = ids[static_cast<size_t>(rank)];
  own.insert(own.end(), moved.begin(), moved.end());
  std::sort(own.begin(), own.end());
}

}  // namespace

bool move_tokens(AppState& state, const TokenRange& tokens, int32_t rank) {
  if (!state.document.is_current() || rank < 0 || rank >= state.plan()->num_ranks()) return false;
  const PlanIndex& plan = *state.plan();
  if (plan.tokens(Side::q) + plan.tokens(Side::kv) > kMostMovedTokens) {
    tell(state, "Too many tokens to move some by hand: write an order file (layout \"indices\")",
         true);
    return false;
  }
  ImportedOrder order{list_ids(plan, Side::q), list_ids(plan, Side::kv)};
  const bool is_self = plan.plan().layout.same_kv;
  if (is_self || tokens.side == Side::q) give_ids(order.ranks, tokens, rank);
  if (is_self || tokens.side == Side::kv) give_ids(order.kv_ranks, tokens, rank);
  Scenario scenario = state.document.scenario();
  const std::string stem = std::filesystem::path(state.document.path()).stem().string();
  if (const auto error =
          use_order(std::move(order), (stem.empty() ? "scenario" : stem) + std::string(kMovedOrder),
                    scenario)) {
    tell(state, to_text(*error), true);
    return false;
  }
  // The lengths that a generator made stay as they are.
  scenario.batch.generator.reset();
  edit_scenario(state, std::move(scenario), "parallel.layout");
  state.document.end_edit();
  return true;
}

}  // namespace cpscope::gui
