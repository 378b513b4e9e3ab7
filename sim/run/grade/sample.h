#pragma once

#include "sim/run/grade/grade.h"
#include "sim/run/toolbox.h"

#include <cstdint>

namespace cpscope {

/// About `count` query tokens and as many keys: from every rank, spread over the runs of its
/// tokens, and first and last valid tokens of sequences. Ascending, valid tokens only.
JudgedRows choose_rows(const Plan& plan, int64_t count);

struct SampleOptions {
  int64_t rows = 0;  // number of query tokens, and of keys
  std::vector<WidenedBudget> budgets = {};
  RunControl control = {};
};

/// A grade of a few rows, and of what can be checked in all rows.
struct SampledGrade {
  Grade grade;
  JudgedRows rows;
  Answer exact;  // of these rows
};

/// Judges a batch that is too long to judge whole, with work that is linear in its tokens. All rows
/// of all tensors are scanned: for NaN and infinity, for values in rows that must be empty, and for
/// rows that look unwritten (zeros, one value in all elements, the row of the token before, values
/// larger than a mean can be, the longest and the shortest rows). The last kind is judged together
/// with the chosen rows. out, lse and dq of the judged queries are computed from the inputs; dk, dv
/// of the judged keys, and the whole d_sink, from the answer's own out and lse. max_logit needs
/// every row and is not judged. Tensors that `seen` lacks are left out. Errors: as SampledJudge.
Result<SampledGrade> grade_sample(const Toolbox& toolbox, const Plan& plan, const RunInputs& inputs,
                                  const Answer& seen, const SampleOptions& options);

}  // namespace cpscope
