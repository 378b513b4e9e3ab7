#pragma once

// Private to the search for causes: wrong rows that are right rows of other places, or simple
// functions of the right ones.

#include "sim/run/grade/suspects.h"
#include "sim/run/grade/wrong_rows.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

/// How well one suspected mistake explains the sampled rows of one tensor.
struct RowFit {
  int64_t wrong = 0, explained = 0;     // sampled wrong rows, and those that it explains
  int64_t right = 0, contradicted = 0;  // sampled right rows, and those that it would change
  bool explains() const { return wrong > 0 && explained * 10 >= wrong * 9; }
};

/// The fit of a mistake under which a row would be predict(row): explains(row, predicted) says
/// whether that explains a wrong one. Of the first `most_rows` of either kind.
template <class Predict, class Explains>
RowFit fit_rows(const WrongTensor& tensor, Predict predict, Explains explains,
                int64_t most_rows = std::numeric_limits<int64_t>::max()) {
  RowFit fit;
  for (const JudgedRow& row : tensor.wrong) {
    if (fit.wrong == most_rows) break;
    ++fit.wrong;
    fit.explained += explains(row, predict(row)) ? 1 : 0;
  }
  for (const JudgedRow& row : tensor.right) {
    if (fit.right == most_rows) break;
    ++fit.right;
    fit.contradicted += tensor.excess(row, predict(row)) > 1 ? 1 : 0;
  }
  return fit;
}

/// A suspected mistake and its fits; `fits` [tensor].
struct Explanation {
  std::string name, text, layout = {};
  std::vector<RowFit> fits;
};

/// The name of rows that hold one value, or none.
inline constexpr std::string_view kUnwrittenRows = "unwritten_rows";

/// The judged exact rows of one tensor, all heads of every judged token.
struct ExactRows {
  ExactRows(const Tensor& exact_rows, const std::vector<int64_t>& judged)
      : exact(exact_rows), tokens(judged) {}

  const Tensor& exact;
  const std::vector<int64_t>& tokens;  // [row of `exact`] ascending packed padded ids

  /// Empty if the token was not judged.
  std::span<const double> row(const RowAddress& at) const;
};

/// What is needed to look at one failed tensor.
struct MovesSearch {
  const WrongTensor& tensor;
  const Tensor& seen;
  ExactRows rows;
  std::optional<ExactRows> twin;  // dv for dk, dk for dv
  const SuspectMaker& maker;
};

/// Mistakes that are seen in the values of one tensor alone, each with its one fit: zeros, rows
/// that were not written, factors, exchanged heads, rows of other places. Exchanged rows are found
/// only among the judged ones.
std::vector<Explanation> find_moved_rows(const MovesSearch& search);

}  // namespace cpscope
