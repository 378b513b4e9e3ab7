#pragma once

#include "sim/run/grade.h"
#include "sim/run/toolbox.h"

#include <optional>

namespace cpscope {

/// Whether a lost share can be smaller than what the answer may err: where dk and dv travel added
/// up and rounded to 16 bits at every hop, over many ranks.
bool can_hide_shares(const Plan& plan);

/// What is looked through: the exact dk and dv of all keys, or of those in `rows`; and whose out
/// and lse the shares follow from.
struct ShareSearch {
  const Answer& exact;
  const Answer& given;
  const JudgedRows* rows = nullptr;  // null: all, and `exact` holds all
  RunControl control = {};
};

/// Looks in the errors of dk and dv for what the queries of one rank give to the keys of another: a
/// share that is missing, or there twice, is found far below the errors of roundings, which point
/// nowhere. Writes what it finds into the grades of dk and dv, which fail by it; tensors that have
/// failed already are left as they are. As much work as one exact backward pass over the rows.
/// Does nothing where `can_hide_shares` is false. Errors: that it was cancelled.
std::optional<Error> search_shares(const Toolbox& toolbox, const Plan& plan,
                                   const RunInputs& inputs, const Answer& seen,
                                   const ShareSearch& search, Grade& grade);

}  // namespace cpscope
