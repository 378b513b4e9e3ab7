#include "sim/run/grade/value_causes.h"

#include "sim/run/run_inputs.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// The factor of `exact` that comes nearest to `seen`; 0 if there is none.
double factor_of(std::span<const double> seen, std::span<const double> exact) {
  double product = 0, square = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    product += seen[i] * exact[i];
    square += exact[i] * exact[i];
  }
  const double factor = product / square;
  return std::isfinite(factor) ? factor : 0.0;
}

}  // namespace

std::optional<Explanation> find_empty_parts(const CauseSearch& search,
                                            std::span<const WrongTensor> tensors) {
  const Answer &seen = search.seen, &exact = search.exact;
  if (search.rows != nullptr || seen.out.values.empty() || seen.lse.values.empty() ||
      exact.out.values.empty())
    return std::nullopt;
  Explanation found{
      "empty_rows_merged",
      "parts that see no key are merged with an lse that is not -inf, as memory held it",
      {},
      std::vector<RowFit>(tensors.size())};
  for (size_t t = 0; t < tensors.size(); ++t) {
    const WrongTensor& tensor = tensors[t];
    if (tensor.is_gradient()) continue;
    const auto predict = [&](const JudgedRow& row) {
      const std::span<const double> right = row_in(exact.out, row.at);
      const double lse = row_in(exact.lse, row.at).front();
      if (tensor.name == "lse")
        return std::vector<double>{lse - std::log(factor_of(row_in(seen.out, row.at), right))};
      const double weight = std::exp(lse - row_in(seen.lse, row.at).front());
      std::vector<double> scaled(right.begin(), right.end());
      for (double& value : scaled) value *= weight;
      return scaled;
    };
    found.fits[t] =
        fit_rows(tensor, predict, [&](const JudgedRow& row, std::span<const double> predicted) {
          // More weight in the sum, and none of it in out.
          return std::isfinite(predicted.front()) &&
                 row_in(seen.lse, row.at).front() > row_in(exact.lse, row.at).front() &&
                 tensor.explains(row, predicted);
        });
  }
  return found;
}

std::optional<Cause> find_sink_factor(const Plan& plan, const CauseSearch& search,
                                      const Grade& grade) {
  const std::vector<double>&seen = search.seen.d_sink, &exact = search.exact.d_sink;
  const auto tensor = std::find_if(grade.tensors.begin(), grade.tensors.end(),
                                   [](const TensorGrade& one) { return one.name == "d_sink"; });
  if (tensor == grade.tensors.end() || !tensor->has_failed() || !tensor->judged ||
      seen.size() != exact.size() || exact.size() < 2)
    return std::nullopt;
  const double factor = factor_of(seen, exact);
  double error = 0, length = 0;
  for (size_t head = 0; head < exact.size(); ++head) {
    error += std::pow(seen[head] - factor * exact[head], 2);
    length += std::pow(factor * exact[head], 2);
  }
  if (!(std::sqrt(error) <= tensor->budget * std::sqrt(length))) return std::nullopt;
  const int32_t ranks = plan.layout.cp_size;
  const bool is_summed = ranks > 1 && std::abs(factor - ranks) <= tensor->budget * ranks;
  return Cause{"factor",
               fmt::format("d_sink is {:.3g} times what it should be{}", factor,
                           is_summed ? ": ranks that each hold all of it have added it up" : ""),
               {"d_sink"},
               std::ssize(exact),
               1.0};
}

Cause describe_padding(const Plan& plan, const WrongTensor& tensor) {
  const std::vector<bool> valid = valid_ids(plan.layout.slots, tensor.side);
  std::set<int64_t> tokens;
  for (const JudgedRow& row : tensor.all_wrong) tokens.insert(row.at.token);
  return {"padding_not_cleared",
          fmt::format("the valid rows agree; {} of {} padding rows do not hold {}: they are "
                      "undefined in some back ends, and --ignore-padding leaves them out",
                      tokens.size(), std::count(valid.begin(), valid.end(), false),
                      tensor.name == "lse" ? "-inf" : "0"),
          {tensor.name},
          std::ssize(tensor.all_wrong),
          1.0};
}

}  // namespace cpscope
