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

/// How a pass may be cut by heads.
struct HeadPieces {
  int32_t most = 1;  // that inputs may come in; 1: results too are computed and sent whole
  /// Of 128 rows, in the second one of two compute items: fewer leave multiprocessors idle, and
  /// more is lost by that than the wire takes.
  int64_t fewest_tiles = 256;
};

/// How far a plan may be changed on its way to devices.
struct Lowering {
  bool saves_work = true;  // off: every item as planned, so that its result can be read
  HeadPieces pieces;
  /// Can the kernel of an item write the dtype: a forward its `out`, a backward dk and dv? None can
  /// where this is empty.
  std::function<bool(const ComputeItem&)> writes_dtype;
  MergingKernels can_merge;
  /// Can the kernels of an item begin before all its inputs are there, and wait for pieces of them?
  std::function<bool(const ComputeItem&)> waits_for_pieces;
  /// May an item be part of one with the keys and values of another one too (joined_computes)? None
  /// may where this is empty.
  std::function<bool(const ComputeItem&)> can_join;
  /// Heads of a forward's item that its kernel takes side by side: they are not cut apart, or its
  /// rows would have other roundings. One where this is empty.
  std::function<int32_t(const Plan&, const ComputeItem&)> heads_together;
  /// Does a rank add up gradients of keys and values when all are there (gradient_shares)?
  bool adds_shares = false;
};

/// What a compute item does beside the plan's work.
struct OwnMerge {
  bool merges = false;  // its `out`, or dq, with what stands there
  bool rounds = false;  // and rounds `out` to the dtype
};

/// Heads where one piece of a rank's inputs ends and the next begins, numbered in the whole
/// attention.
struct HeadCuts {
  std::vector<int32_t> q, kv;  // ends
};

/// A plan as devices carry it out. Every pair, row and byte is the plan's, and so is every number
/// of the results, but for roundings where items are joined; saved are passes over memory and time:
/// - what a rank computes with its own keys and values and with received ones is one item
///   (joined_computes);
/// - a compute item writes where its first merge would copy to, and merges there itself later
///   (merge_shortcuts);
/// - a transfer lands where a reorder would put its rows, or takes them from where a reorder would
///   find them, and buffers between are gone;
/// - gradients that land first are not added to zeros, and transfers round them (landing_savings);
/// - memory holds results in the dtype that nothing is added to (narrow_buffers);
/// - gradients of several ranks are added up at once, and rows that travel are written in the dtype
///   by the kernel that makes them (gradient_shares);
/// - where every rank computes once in a pass, what comes before is cut into pieces of heads, one
///   after the other, so that the first piece is computed while the others are under way; where
///   what is computed is sent at once, the last heads are an item of their own, beside which the
///   others' results travel.
struct LoweredPlan {
  /// Items of one pass: which of the plan's they are, or are pieces of; -1: a joined item's
  /// gradients on their way home.
  struct Origins {
    std::array<std::vector<int64_t>, 5> items;   // [StageKind][item]
    std::vector<std::vector<JoinedPart>> parts;  // [compute item] that it joins, if it does
    std::vector<bool> rounds;                    // [merge item] its sum is rounded to the dtype
    std::vector<OwnMerge> own_merges;            // [compute item]
    std::vector<Rounding> roundings;             // [transfer item]
    std::vector<int32_t> pieces;                 // [transfer item] -1: it is none
    std::vector<bool> are_shares;                // [transfer item] added with others, all at once
    std::vector<HeadCuts> cuts;                  // [rank]; empty: inputs come whole
    /// [rank] Its kernel writes all pieces that it sends, because some lie too scattered for
    /// copies; empty: nobody's.
    std::vector<bool> pushing;

    std::vector<int64_t>& of(StageKind kind) { return items[static_cast<size_t>(kind)]; }
    const std::vector<int64_t>& of(StageKind kind) const {
      return items[static_cast<size_t>(kind)];
    }
    bool is_cut() const { return !cuts.empty(); }
    bool pushes_all_pieces(RankId rank) const {
      return !pushing.empty() && pushing[static_cast<size_t>(to_index(rank))];
    }
    /// Of all ranks' inputs: one that receives less may have fewer.
    int32_t num_pieces() const {
      return pieces.empty() ? 0 : *std::max_element(pieces.begin(), pieces.end()) + 1;
    }
  };

  Plan plan;  // without the items that nothing is left of; buffers without use have no rows
  std::array<Origins, 2> origins;   // forward, backward
  std::vector<bool> is_narrow;      // [buffer] results that hold the dtype, not fp32
  std::vector<bool> has_wire_copy;  // [buffer] gradients in fp32 where they stay, else in the dtype
  std::vector<BufferId> answers;    // `out` buffers that hold lse of the answer
  std::array<int64_t, 2> planned_computes{};  // number of the plan's own compute items

  const Origins& origins_of(bool is_backward) const { return origins[is_backward ? 1 : 0]; }
};

LoweredPlan lower_plan(const Plan& plan, const Lowering& lowering);

/// Events of the plan's items, by start: pieces of an item are one event, from the begin of the
/// first to the end of the last; items that were joined are one after the other, each as long as
/// its pairs are of all.
std::vector<ItemEvent> planned_events(const LoweredPlan& lowered,
                                      const std::vector<ItemEvent>& events);

/// Ends of the pieces that `heads` come in: small ones first, because nothing is computed beside
/// the transfer of the first. `head_bytes`: that a rank sends of each. Rows of one head are short,
/// and copies of them slow: where heads are small the first piece, which a kernel sends, has more.
std::vector<int32_t> cut_heads(int32_t heads, int32_t most_pieces, int64_t head_bytes);

}  // namespace cpscope::kernels
