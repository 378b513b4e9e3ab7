#pragma once

#include "sim/run/grade/grade.h"
#include "sim/run/toolbox.h"

#include <optional>

namespace cpscope {

/// True if a lost share can be smaller than the allowed error: if dk and dv are summed over many
/// ranks and rounded to 16 bits at every hop.
bool can_hide_shares(const Plan& plan);

/// The keys to search: the exact dk and dv of all keys, or of those in `rows`; and the answer whose
/// out and lse the shares follow from.
struct ShareSearch {
  const Answer& exact;
  const Answer& given;
  const JudgedRows* rows = nullptr;  // null: all, and `exact` holds all
  RunControl control = {};
};

/// Searches the errors of dk and dv for the contribution of one rank's queries to the keys of
/// another. A share that is missing, or added twice, is found even far below the rounding errors,
/// because those have no direction. Findings are written into the grades of dk and dv, which then
/// fail; tensors that have failed already stay unchanged. Costs as much as one exact backward pass
/// over the rows. Does nothing if `can_hide_shares` is false. Errors: cancelled.
std::optional<Error> search_shares(const Toolbox& toolbox, const Plan& plan,
                                   const RunInputs& inputs, const Answer& seen,
                                   const ShareSearch& search, Grade& grade);

}  // namespace cpscope
