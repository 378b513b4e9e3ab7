#pragma once

// Private to the search for causes: mistakes that the values of several tensors show together, or
// those of a tensor that has no rows of tokens.

#include "sim/run/grade/cause_search.h"
#include "sim/run/grade/row_moves_search.h"

#include <optional>
#include <span>

namespace cpscope {

/// Parts that see no key are merged with an lse that is not -inf, whatever it is: rows of out are
/// shorter by as much as their lse is greater. Needs both, of all rows.
std::optional<Explanation> find_empty_parts(const CauseSearch& search,
                                            std::span<const WrongTensor> tensors);

/// d_sink is a number of times what it should be, in two heads at least.
std::optional<Cause> find_sink_factor(const Plan& plan, const CauseSearch& search,
                                      const Grade& grade);

/// Only rows of padding are wrong.
Cause describe_padding(const Plan& plan, const WrongTensor& tensor);

}  // namespace cpscope
