#pragma once

#include "sim/base/id_vector.h"
#include "sim/plan/planner/plan_builder.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace cpscope {

/// One block of a schedule draft.
enum class BlockId : int32_t {};

/// Rows of one rank's home buffer that a schedule sends and computes with as one.
struct DraftBlock {
  Side side{};
  RankId owner{};
  RunListId tokens{};
  RunListId rows = kAllRows;  // rows of the owner's home buffer
};

/// A copy of a block from one rank to another. The sender owns the block or has received it, or,
/// if `from` is another block, holds that one, which is the owner's whole buffer.
struct DraftSend {
  RankId src{}, dst{};
  BlockId block{};
  BlockId from{};
};

/// Attention of the rows of a query block to a key block, with all query heads, on one rank.
struct DraftCompute {
  RankId rank{};
  BlockId q{}, kv{};
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

/// A schedule as its author thinks of it: which blocks go where, and what meets. compile_draft adds
/// the rest.
struct ScheduleDraft {
  IdVector<BlockId, DraftBlock> blocks;
  std::vector<DraftStep> steps;
  ReturnTime returns = ReturnTime::next_step;
  bool prunes = false;  // leave out sends of blocks with which nothing visible is computed

  BlockId add_block(DraftBlock block) { return blocks.push_back(block); }
};

/// The whole home buffers of every rank as blocks.
struct HomeBlocks {
  IdVector<RankId, BlockId> q, kv;
};
HomeBlocks add_home_blocks(const PlanBuilder& builder, ScheduleDraft& draft);

/// Makes both passes of the plan from a draft: intersects every compute with the mask; sends the
/// partial results, gradients of queries and gradients of keys of other ranks' rows to the owners
/// of the rows, summed over a rank's computes; merges them there, in the order of steps; finishes.
/// The backward repeats the forward's sends, with d_out and statistics beside the queries. Rows of
/// other ranks, and results, share buffers if they are not used at the same time.
/// Errors: a rank sends or computes with a block that it does not hold (yet); too many slices.
std::optional<Error> compile_draft(PlanBuilder& builder, const ScheduleDraft& draft);
/// The backward alone, for a forward that was made otherwise.
std::optional<Error> compile_backward(PlanBuilder& builder, const ScheduleDraft& draft);

}  // namespace cpscope
