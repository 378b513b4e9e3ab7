#pragma once

#include "sim/base/id_vector.h"
#include "sim/base/result.h"
#include "sim/plan/direction.h"
#include "sim/plan/item_event.h"
#include "sim/plan/plan.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope::kernels {

/// The origin of an item that the plan does not have: a joined item's own gradients that are sent
/// home.
inline constexpr int64_t kNoOrigin = -1;
/// The piece of a transfer that is not cut.
inline constexpr int32_t kWhole = -1;

/// Roundings to the dtype by a transfer, in addition to that of its wire.
struct Rounding {
  bool values = false;  // the sent values
  bool sums = false;    // the values at the destination afterwards

  friend bool operator==(const Rounding&, const Rounding&) = default;
};

/// Keys and values of a compute item that are a separate item in the plan.
struct JoinedPart {
  int64_t origin = 0;  // the plan's compute item
  int64_t visible_pairs = 0;
  std::vector<TokenRun> kv_rows;  // places of its rows of kv, and of dkv, in their order
};

/// Extra work of a compute item.
struct OwnMerge {
  bool merges = false;  // merges its `out`, or dq, with the stored values
  bool rounds = false;  // also rounds `out` to the dtype
};

// What lowering adds to an item. `origin`: the index of the plan's item that it is, or is a piece
// of.

struct TransferNote {
  int64_t origin = kNoOrigin;
  Rounding rounding;
  int32_t piece = kWhole;  // of the receiver's inputs
  bool is_share = false;   // added together with the other shares of its sum
};

struct ComputeNote {
  int64_t origin = kNoOrigin;
  std::vector<JoinedPart> parts;  // the items that it joins; empty: it is its origin
  OwnMerge own_merge;
};

/// The parts that a compute item joins; where it joins none, its origin as the only part, with all
/// rows of its keys and values.
std::vector<JoinedPart> joined_parts(const ComputeNote& note, const ComputeItem& item,
                                     const Plan& plan);

struct MergeNote {
  int64_t origin = kNoOrigin;
  bool rounds = false;  // its sum is rounded to the dtype
};

struct ReorderNote {
  int64_t origin = kNoOrigin;
};

struct FinishNote {
  int64_t origin = kNoOrigin;
};

/// Heads where one piece of a rank's inputs ends and the next begins, numbered among all heads.
struct HeadCuts {
  std::vector<int32_t> q, kv;  // ends
};

struct RankNote {
  HeadCuts cuts;  // empty: inputs arrive whole
  /// Its kernel writes all pieces that it sends, because some are too scattered for copies.
  bool pushes_all_pieces = false;
};

/// One note for each item of a pass, named and numbered as the pass names and numbers the items.
struct PassNotes {
  std::vector<ComputeNote> computes;
  std::vector<TransferNote> transfers;
  std::vector<ReorderNote> reorders;
  std::vector<MergeNote> merges;
  std::vector<FinishNote> finishes;
  IdVector<RankId, RankNote> ranks;
  bool is_cut = false;  // inputs arrive in pieces

  /// Largest number of pieces of any rank's inputs: a rank that receives less may have fewer.
  int32_t num_pieces() const {
    int32_t most = 0;
    for (const TransferNote& note : transfers) most = std::max(most, note.piece + 1);
    return most;
  }
};

struct BufferNote {
  bool is_narrow = false;      // results that hold the dtype, not fp32
  bool has_wire_copy = false;  // gradients in fp32 for rows that stay, in the dtype for others
  bool is_sum = false;         // gradients that are only zeroed, added to, and rounded
};

/// A plan in the form that devices execute: the plan's own items, changed by the passes of
/// `lowering_passes`, each with a note of what it came from. Every pair, row and byte is the
/// plan's, and so is every number of the results, except for roundings where items are joined
/// (check_lowered proves it).
struct LoweredPlan {
  Plan plan;  // without items that have no work left; unused buffers have no rows
  ByDirection<PassNotes> notes;
  IdVector<BufferId, BufferNote> buffers;
  std::vector<BufferId> answers;          // `out` buffers that hold the lse of the answer
  ByDirection<int64_t> planned_computes;  // number of the plan's own compute items
};

/// Answers a question about the kernel of a compute item. An empty function means false.
using AskKernel = std::function<bool(const ComputeItem&)>;

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
  std::vector<std::string> without = {};  // names of passes that do not run, to find a fault
  HeadPieces pieces = {};
  AskKernel writes_dtype = {};  // it can write the dtype: a forward its `out`, a backward dk and dv
  AskKernel can_merge = {};     // it can merge its `out`, or its dq, with the stored values
  AskKernel waits_for_pieces =
      {};                   // it can begin before all inputs have arrived, and wait for pieces
  AskKernel can_join = {};  // its item can be joined with the one for other keys and values
  /// Number of heads of a forward's item that its kernel puts in one tile. They are not cut apart,
  /// because that would change the roundings of their rows. An empty function means one.
  std::function<int32_t(const Plan&, const ComputeItem&)> heads_together = {};
  /// True if a rank adds up gradients of keys and values when all have arrived.
  bool adds_shares = false;
};

/// A pass over a lowered plan: it changes the plan and leaves its answers as they are.
struct LoweringPass {
  std::string_view name;
  std::string_view summary;  // a clause: "joins ..."
  void (*run)(LoweredPlan&, const Lowering&);
};

/// All passes, in the order in which they run.
std::span<const LoweringPass> lowering_passes();

/// Names of passes: "cut_inputs,narrow_outs", or "all". Errors: bad_input for another name.
Result<std::vector<std::string>> parse_pass_names(std::string_view text);

/// The plan with every item as planned.
LoweredPlan as_planned(const Plan& plan);

/// The plan after all passes that `lowering` permits.
LoweredPlan lower_plan(const Plan& plan, const Lowering& lowering);

/// Events of the plan's items, by start. Pieces of an item become one event, from the begin of the
/// first to the end of the last. Joined items become one event each, one after another, with a
/// duration in proportion to their pairs.
std::vector<ItemEvent> planned_events(const LoweredPlan& lowered,
                                      const std::vector<ItemEvent>& events);

/// True if a rank computes for queries of another rank and sends it the results. The computes of
/// such a plan are neither joined nor cut by heads.
inline bool moves_queries(const Plan& plan) {
  const auto has_statistics = [](const HomeBuffers& home) { return home.stats != kNoBuffer; };
  const auto is_partial = [](const TransferItem& item) { return item.payload == Payload::partial; };
  const std::vector<TransferItem>& sent = plan.forward.transfers;
  return std::any_of(plan.home.begin(), plan.home.end(), has_statistics) ||
         std::any_of(sent.begin(), sent.end(), is_partial);
}

/// Rows of a list, or all of them as one run, which is stored in `all`.
inline std::span<const TokenRun> runs_of_rows(const Plan& plan, RunListId list,
                                              const TokenRun& all) {
  return list == kAllRows ? std::span(&all, 1) : plan.list(list);
}

}  // namespace cpscope::kernels
