#pragma once

#include "gui/model/target.h"
#include "sim/plan/plan.h"

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace cpscope::gui {

/// Which tokens: a run list of the plan's pool and the side that its ids stand on, in one number.
/// -1: no token is read, or the rows are a part of a list (then tokens_of writes them out).
constexpr int32_t make_token_key(RunListId list, Side side) {
  return to_index(list) < 0 ? -1 : 2 * to_index(list) + (side == Side::kv ? 1 : 0);
}

/// What all transfers of one stage move.
struct StageTraffic {
  int64_t bytes = 0;                                  // on wires
  int64_t wires = 0;                                  // transfers that cross one
  std::vector<std::pair<Payload, int64_t>> payloads;  // each once, with a transfer of it; one that
                                                      // crosses a wire if there is one
};

/// What is asked of millions of items again and again, packed: one entry an item.
struct ItemColumns {
  std::vector<int32_t> rank;        // who works; transfers: who sends
  std::vector<int32_t> other_rank;  // transfers: who receives
  std::vector<int32_t> q_key;       // computes: queries with a visible key
  std::vector<int32_t> key;  // computes: keys with a query that sees them; else the rows touched
  std::vector<int32_t> first_of_stage;  // [stage of this kind] first item
  std::vector<int32_t> stage;           // [stage of this kind] its number in PlanIndex::stages

  std::vector<StageTraffic> traffic;  // transfers: [stage of this kind]

  // [item] items of each stage by that rank, then number; empty where they stand so already.
  std::vector<int32_t> by_rank, by_other_rank;

  /// Items of [begin, end), a whole stage, of a rank (transfers: that it sends), in
  /// order. O(log items of the stage + items found).
  std::vector<int64_t> items_of(int64_t begin, int64_t end, int32_t of_rank) const;
  /// Transfers of [begin, end), a whole stage, that a rank receives, in order.
  std::vector<int64_t> items_to(int64_t begin, int64_t end, int32_t to_rank) const;
  /// Number in PlanIndex::stages of the stage of an item.
  int32_t stage_of(int64_t index) const;
  /// Traffic of the stage that begins with this transfer; null when it is no transfer stage.
  const StageTraffic* traffic_of(int64_t first_transfer) const;
};

/// Columns of every kind of one pass. Stages are counted from `first_stage`.
using PassColumns = std::array<ItemColumns, 5>;  // [StageKind]
PassColumns make_columns(const Plan& plan, const Pass& pass, int32_t first_stage);

/// Token ids that an item touches on one side, in the order of its rows.
///   transfer: the rows that travel;  reorder, merge, finish: the rows of the buffer written;
///   compute: its whole q or kv buffer, padding too.
std::vector<TokenRun> tokens_of(const Plan& plan, const PassColumns& columns,
                                const ItemTarget& item, Side side);

/// Ids of the runs at the given rows.
std::vector<TokenRun> pick_rows(std::span<const TokenRun> ids, std::span<const TokenRun> rows);

}  // namespace cpscope::gui
