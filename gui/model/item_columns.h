#pragma once

#include "gui/model/target.h"
#include "sim/plan/plan.h"

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace cpscope::gui {

/// The side whose ids are the tokens of a buffer's rows, or of a transfer's.
constexpr Side side_of(BufferKind kind) {
  return kind == BufferKind::kv || kind == BufferKind::dkv ? Side::kv : Side::q;
}
constexpr Side side_of(Payload payload) {
  return payload == Payload::kv || payload == Payload::dkv ? Side::kv : Side::q;
}

/// A run list of the plan's pool together with the side of its ids, as one number. -1: no token is
/// read, or the rows are a part of a list (then tokens_of returns them).
constexpr int32_t make_token_key(RunListId list, Side side) {
  return to_index(list) < 0 ? -1 : 2 * to_index(list) + (side == Side::kv ? 1 : 0);
}

/// The transfers of one stage in figures.
struct StageTraffic {
  int64_t bytes = 0;                                  // bytes on wires
  int64_t wires = 0;                                  // transfers between different ranks
  std::vector<std::pair<Payload, int64_t>> payloads;  // each payload once, with a transfer of it;
                                                      // one that crosses a wire if there is one
};

/// Frequently read data of items, in packed form: one entry per item.
struct ItemColumns {
  std::vector<int32_t> rank;        // the rank that works; transfers: the sender
  std::vector<int32_t> other_rank;  // transfers: the receiver
  std::vector<int32_t> q_key;       // computes: queries with a visible key
  std::vector<int32_t> key;  // computes: keys that some query sees; otherwise the rows touched
  std::vector<int32_t> first_of_stage;  // [stage of this kind] first item
  std::vector<int32_t> stage;           // [stage of this kind] its index in PlanIndex::stages

  std::vector<StageTraffic> traffic;  // transfers: [stage of this kind]

  // [item] items of each stage by that rank, then number; empty if they already are in that order.
  std::vector<int32_t> by_rank, by_other_rank;

  /// Items of [begin, end), a whole stage, of a rank (transfers: those that it sends), in order.
  /// O(log items of the stage + items found).
  std::vector<int64_t> items_of(int64_t begin, int64_t end, int32_t of_rank) const;
  /// Transfers of [begin, end), a whole stage, that a rank receives, in order.
  std::vector<int64_t> items_to(int64_t begin, int64_t end, int32_t to_rank) const;
  /// The same of all stages.
  std::vector<int64_t> all_of(int32_t of_rank) const;
  std::vector<int64_t> all_to(int32_t to_rank) const;
  /// Index in PlanIndex::stages of the stage of an item.
  int32_t stage_of(int64_t index) const;
  /// Traffic of the stage that begins with this transfer; null when no transfer stage begins there.
  const StageTraffic* traffic_of(int64_t first_transfer) const;
};

/// Columns of every kind of item in one pass.
using PassColumns = std::array<ItemColumns, 5>;  // [StageKind]
PassColumns make_columns(const Plan& plan, const Pass& pass, int32_t first_stage);

/// Token ids that an item touches on one side, in the order of its rows.
///   transfer: the rows that it carries;  reorder, merge, finish: the rows of the buffer written;
///   compute: its whole q or kv buffer, including padding.
std::vector<TokenRun> tokens_of(const Plan& plan, const PassColumns& columns, const ItemId& item,
                                Side side);

/// The ids at the given rows of the runs.
std::vector<TokenRun> pick_rows(std::span<const TokenRun> ids, std::span<const TokenRun> rows);

}  // namespace cpscope::gui
