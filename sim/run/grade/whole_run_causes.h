#pragma once

// Private to the search for causes: mistakes for which the oracle computes whole answers.

#include "sim/run/grade/cause_search.h"
#include "sim/run/grade/row_moves_search.h"

#include <optional>
#include <span>

namespace cpscope {

/// A scale from a step with smaller values: q, k and v are clipped. Found if exact attention of the
/// clipped inputs is nearer to `out` than half its error; the clip is searched down to 1/16 of the
/// largest value. Only dtype fp8 with one scale a tensor. Errors: cancelled.
Result<std::optional<Explanation>> find_stale_scale(const Toolbox& toolbox, const Plan& plan,
                                                    const RunInputs& inputs,
                                                    const CauseSearch& search,
                                                    std::span<const WrongTensor> tensors);

/// dk and dv of the blocks that a rank has computed with, added up on this rank as if they were its
/// own: the shares of the other ranks' queries are missing, and those of their keys surplus
/// (TransformerEngine's FP8 ring). Only where keys travel round a ring, with a v of
/// their own. Errors: cancelled.
Result<std::optional<Explanation>> find_shares_kept(const Toolbox& toolbox, const Plan& plan,
                                                    const RunInputs& inputs,
                                                    const CauseSearch& search,
                                                    const SuspectMaker& maker,
                                                    std::span<const WrongTensor> tensors);

}  // namespace cpscope
