#pragma once

#include "sim/base/id_vector.h"
#include "sim/plan/planner/plan_builder.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cpscope {

/// One block of a schedule draft.
enum class BlockId : int32_t {};

/// Rows and heads of one rank's home buffer that a schedule sends and computes with as one; or such
/// blocks of several ranks, joined.
struct DraftBlock {
  Side side{};
  RankId owner{};
  RunListId tokens{};
  RunListId rows = kAllRows;  // rows of the owner's home buffer, ascending
  HeadRange heads{};          // query heads or KV heads; none named: all
  /// Joined: blocks of one side with the same heads, whose rows follow one another. `owner` is
  /// kSeveralRanks.
  std::vector<BlockId> parts = {};
};

inline constexpr RankId kSeveralRanks{-1};

/// A copy of a block from one rank to another. The sender owns the block, or has received it or a
/// block that contains it. A joined block comes from the owners of its parts (`src` is
/// kSeveralRanks), in one buffer; a part that the receiver owns is copied, if it is of keys.
struct DraftSend {
  RankId src{}, dst{};
  BlockId block{};
};

/// Attention of the rows of a query block to a key block on one rank, which owns each block, or has
/// received it or a block that contains it.
struct DraftCompute {
  RankId rank{};
  BlockId q{}, kv{};
  HeadRange heads{};  // query heads; none named: those of q whose KV heads are in kv
};

/// One step: sends that must land before the step computes; what it computes; sends that run
/// meanwhile and land before the next step.
struct DraftStep {
  std::vector<DraftSend> before;
  std::vector<DraftCompute> computes;
  std::vector<DraftSend> during;
};

/// When the results for another rank's queries are sent to that rank.
enum class ReturnTime : uint8_t {
  next_step,  // while the step after the last compute of a query block on a rank runs
  end         // after the last step, all at once
};

/// How dk and dv reach the owner of the keys.
enum class GradientWay : uint8_t {
  to_owner,  // each rank sends its share, when results return
  with_keys  // one sum goes from rank to rank as the keys do, and home from the last one
};

/// A schedule as its author thinks of it: which blocks go where, and what meets. compile_draft adds
/// the rest.
struct ScheduleDraft {
  IdVector<BlockId, DraftBlock> blocks;
  std::vector<DraftStep> steps;
  /// Steps of the backward, which begins with home buffers alone; none: it repeats `steps`.
  std::optional<std::vector<DraftStep>> backward_steps;
  ReturnTime returns = ReturnTime::next_step;
  GradientWay gradients = GradientWay::to_owner;
  bool prunes = false;  // leave out sends of blocks with which nothing visible is computed

  BlockId add_block(DraftBlock block) { return blocks.push_back(block); }
};

/// The whole home buffers of every rank as blocks.
struct HomeBlocks {
  IdVector<RankId, BlockId> q, kv;
};
HomeBlocks add_home_blocks(const PlanBuilder& builder, ScheduleDraft& draft);

/// A block of some rows of a rank's home buffer, `rows` ascending; all heads if none are named.
DraftBlock make_part_block(PlanBuilder& builder, Side side, RankId owner,
                           const std::vector<TokenRun>& rows, HeadRange heads = {});

/// Joins blocks of one side with the same heads; each is of one rank.
DraftBlock join_blocks(PlanBuilder& builder, const ScheduleDraft& draft,
                       const std::vector<BlockId>& parts);

/// A send or a compute of a draft.
enum class DraftPart : uint8_t { before, compute, during };
struct DraftPlace {
  Direction direction{};  // backward: of backward_steps
  size_t step = 0;
  DraftPart part{};
  size_t index = 0;  // of the part's list
};

/// Where the draft says what a plan, or an error, comes from.
struct DraftTrace {
  std::optional<DraftPlace> wrong;                              // of an error, if it has a place
  std::vector<DraftPlace> forward_computes, backward_computes;  // [compute item of the pass]
};

/// Makes both passes of the plan from a draft: intersects every compute with the mask; sends the
/// partial results, gradients of queries and gradients of keys of other ranks' rows to the owners
/// of the rows, summed over a rank's computes; merges them there, in the order of steps; finishes.
/// In the backward d_out and statistics travel with the queries. Rows of other ranks, and
/// results, share buffers if they are not used at the same time. Errors: a rank sends or computes
/// with a block that it does not hold (yet), or receives one that it holds; query heads without
/// their KV heads; too many slices.
std::optional<Error> compile_draft(PlanBuilder& builder, ScheduleDraft draft,
                                   DraftTrace* trace = nullptr);
/// The backward alone, for a forward that was made otherwise.
std::optional<Error> compile_backward(PlanBuilder& builder, ScheduleDraft draft);

/// A block in words: "the keys of rank 3".
std::string describe_block(const Plan& plan, const DraftBlock& block);

}  // namespace cpscope
