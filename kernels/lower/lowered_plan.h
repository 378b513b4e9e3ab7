#pragma once

#include "kernels/lower/joined_computes.h"
#include "kernels/lower/landing_savings.h"
#include "kernels/lower/merge_shortcuts.h"
#include "sim/plan/plan.h"
#include "sim/run/executor.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <vector>

namespace cpscope::kernels {

/// Rules for cutting a pass by heads.
struct HeadPieces {
  int32_t most = 1;  // input pieces at most; 1: results too are computed and sent whole
  /// Fewest tiles of 128 rows in the second of two compute items: fewer would leave multiprocessors
  /// idle, which costs more than the wire.
  int64_t fewest_tiles = 256;
};

/// How far a plan may be changed for devices.
struct Lowering {
  bool saves_work = true;  // false: every item as planned, so that its result can be read
  HeadPieces pieces;
  /// True if the kernel of an item can write the dtype: a forward its `out`, a backward dk and dv.
  /// An empty function means false.
  std::function<bool(const ComputeItem&)> writes_dtype;
  MergingKernels can_merge;
  /// True if the kernels of an item can begin before all its inputs have arrived, and wait for
  /// pieces of them.
  std::function<bool(const ComputeItem&)> waits_for_pieces;
  /// True if an item can be joined with the one for other keys and values (joined_computes). An
  /// empty function means false.
  std::function<bool(const ComputeItem&)> can_join;
  /// Number of heads of a forward's item that its kernel puts in one tile. They are not cut apart,
  /// because that would change the roundings of their rows. An empty function means one.
  std::function<int32_t(const Plan&, const ComputeItem&)> heads_together;
  /// True if a rank adds up gradients of keys and values when all have arrived (gradient_shares).
  bool adds_shares = false;
};

/// Extra work of a compute item.
struct OwnMerge {
  bool merges = false;  // merges its `out`, or dq, with the stored values
  bool rounds = false;  // also rounds `out` to the dtype
};

/// Heads where one piece of a rank's inputs ends and the next begins, numbered among all heads.
struct HeadCuts {
  std::vector<int32_t> q, kv;  // ends
};

/// A plan in the form that devices execute. Every pair, row and byte is the plan's, and so is every
/// number of the results, except for roundings where items are joined. It saves passes over memory
/// and time:
/// - a rank's computes with its own keys and values and with received ones are one item
///   (joined_computes);
/// - a compute item writes to the destination of its first merge, and does later merges itself
///   (merge_shortcuts);
/// - a transfer writes to the destination of a reorder, or reads from the source of one, and the
///   buffers between are not needed;
/// - gradients that arrive first are not added to zeros, and transfers round them
///   (landing_savings);
/// - results to which nothing is added are stored in the dtype (narrow_buffers);
/// - gradients of several ranks are added up at once, and rows to be sent are written in the dtype
///   by the kernel that makes them (gradient_shares);
/// - if every rank computes once in a pass, the transfers before are cut into pieces of heads, one
///   after another, so that the first piece is computed while the others are in flight; if the
///   results are sent immediately, the last heads are a separate item, and the results of the
///   others are sent while it runs.
struct LoweredPlan {
  /// Items of one pass: the index of the plan's item that each is, or is a piece of; -1: the
  /// transfer home of a joined item's gradients.
  struct Origins {
    std::array<std::vector<int64_t>, 5> items;   // [StageKind][item]
    std::vector<std::vector<JoinedPart>> parts;  // [compute item] the items it joins, if any
    std::vector<bool> rounds;                    // [merge item] its sum is rounded to the dtype
    std::vector<OwnMerge> own_merges;            // [compute item]
    std::vector<Rounding> roundings;             // [transfer item]
    std::vector<int32_t> pieces;                 // [transfer item] -1: not a piece
    std::vector<bool> are_shares;                // [transfer item] added together with other shares
    std::vector<HeadCuts> cuts;                  // [rank]; empty: inputs arrive whole
    /// [rank] Its kernel writes all pieces that it sends, because some are too scattered for
    /// copies; empty: on no rank.
    std::vector<bool> pushing;

    std::vector<int64_t>& of(StageKind kind) { return items[static_cast<size_t>(kind)]; }
    const std::vector<int64_t>& of(StageKind kind) const {
      return items[static_cast<size_t>(kind)];
    }
    bool is_cut() const { return !cuts.empty(); }
    bool pushes_all_pieces(RankId rank) const {
      return !pushing.empty() && pushing[static_cast<size_t>(to_index(rank))];
    }
    /// Largest number of pieces of any rank's inputs: a rank that receives less may have fewer.
    int32_t num_pieces() const {
      return pieces.empty() ? 0 : *std::max_element(pieces.begin(), pieces.end()) + 1;
    }
  };

  Plan plan;  // without items that have no work left; unused buffers have no rows
  std::array<Origins, 2> origins;   // forward, backward
  std::vector<bool> is_narrow;      // [buffer] results that hold the dtype, not fp32
  std::vector<bool> has_wire_copy;  // [buffer] gradients in fp32 for rows that stay, in the dtype
                                    // for others
  std::vector<BufferId> answers;    // `out` buffers that hold the lse of the answer
  std::array<int64_t, 2> planned_computes{};  // number of the plan's own compute items

  const Origins& origins_of(bool is_backward) const { return origins[is_backward ? 1 : 0]; }
};

LoweredPlan lower_plan(const Plan& plan, const Lowering& lowering);

/// Events of the plan's items, by start. Pieces of an item become one event, from the begin of the
/// first to the end of the last. Joined items become one event each, one after another, with a
/// duration in proportion to their pairs.
std::vector<ItemEvent> planned_events(const LoweredPlan& lowered,
                                      const std::vector<ItemEvent>& events);

/// Ends of the pieces of `heads`. Small pieces come first, because nothing is computed during the
/// transfer of the first. `head_bytes`: bytes that a rank sends for each head. Rows of one head are
/// short, and copies of them slow: if heads are small, the first piece, which a kernel sends, has
/// more of them.
std::vector<int32_t> cut_heads(int32_t heads, int32_t most_pieces, int64_t head_bytes);

}  // namespace cpscope::kernels
