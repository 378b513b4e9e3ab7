#pragma once

#include "sim/run/grade.h"
#include "sim/run/toolbox.h"

#include <cstdint>

namespace cpscope {

/// About `count` query tokens and as many keys: of every rank, spread over the runs of its tokens,
/// and first and last valid ones of sequences. Ascending, valid tokens only.
JudgedRows choose_rows(const Plan& plan, int64_t count);

struct SampleOptions {
  int64_t rows = 0;  // so many query tokens, and keys
  std::vector<WidenedBudget> budgets = {};
  RunControl control = {};
};

/// A grade of a few rows, and of what can be seen in all.
struct SampledGrade {
  Grade grade;
  JudgedRows rows;
  Answer exact;  // of these rows
};

/// Judges a batch that is too long to judge whole, with work that is linear in its tokens.
/// All rows of all tensors are looked through: for NaN and infinity, for something where nothing
/// belongs, and for rows that look as if nobody wrote them (zeros, one value in all lanes, the row
/// of the token before, more than a mean of values can be, the longest and the shortest); the last
/// are judged beside those that are chosen. out, lse and dq of the judged queries are computed
/// from the inputs; dk, dv of the judged keys, and d_sink whole, from the answer's own out and lse.
/// max_logit needs every row and is not judged. Tensors that `seen` lacks are left out.
/// Errors: as SampledJudge.
Result<SampledGrade> grade_sample(const Toolbox& toolbox, const Plan& plan, const RunInputs& inputs,
                                  const Answer& seen, const SampleOptions& options);

}  // namespace cpscope
