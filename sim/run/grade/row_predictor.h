#pragma once

// Private to the search for causes: the values that a mistake gives a row.

#include "sim/plan/plan.h"
#include "sim/run/grade/suspects.h"
#include "sim/run/grade/wrong_rows.h"
#include "sim/run/judge.h"

#include <cstdint>
#include <map>
#include <vector>

namespace cpscope {

/// Rows of a request, and where each is among them.
struct AskedRows {
  AlteredRequest request;
  std::map<RowAddress, size_t> queries, keys;

  void add(Side side, const RowAddress& at);
};

/// What the oracle computed of them under one suspected mistake.
struct Evaluation {
  AskedRows rows;
  AlteredRows altered;
};

/// The values that a mistake gives the rows of an evaluation.
struct RowPredictor {
  const Plan& plan;
  const RunInputs& inputs;
  const Answer& seen;
  const Tensor* lse;  // the answer's, or the right one; null: neither is there
  const Suspect& suspect;
  const Evaluation& evaluation;

  std::vector<double> predict(const WrongTensor& tensor, const PartsMistake& mistake,
                              const RowAddress& at) const;
};

}  // namespace cpscope
