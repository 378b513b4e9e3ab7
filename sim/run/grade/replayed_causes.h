#pragma once

// Private to the search for causes: mistakes that are carried out in whole runs.

#include "sim/run/grade/cause_search.h"
#include "sim/run/grade/row_moves_search.h"

#include <span>
#include <vector>

namespace cpscope {

/// What one search by replays found.
struct Replays {
  std::vector<Explanation> found;
  bool is_too_much = false;  // the batch is too large to be run once for each mistake
};

/// Runs the watched walker with each mistake of an executor that this plan can have and that the
/// oracle cannot carry out row by row, everywhere: casts and scales of 8 bits, merges, reads of
/// another place in a compute item. A row is explained if the replay is within its budget of what
/// was seen, and at most half as far from it as the right values and a replay without a mistake
/// are. Nothing without a walker, or for a part of the rows. Errors: cancelled.
Result<Replays> replay_mistakes(const Toolbox& toolbox, const Plan& plan, const RunInputs& inputs,
                                const CauseSearch& search, std::span<const WrongTensor> tensors);

/// The same with each mistake of a plan or of inputs, one after another, as far as the work allows.
/// Of those that are in the forward too, the forward alone is run first: what it gives must explain
/// `out` or lse. `is_named` [tensor]: not looked at.
Result<Replays> replay_plan_mistakes(const Toolbox& toolbox, const Plan& plan,
                                     const RunInputs& inputs, const CauseSearch& search,
                                     std::span<const WrongTensor> tensors,
                                     const std::vector<bool>& is_named);

}  // namespace cpscope
