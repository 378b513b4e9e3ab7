#include "sim/run/grade/earned_tolerance.h"

#include "sim/run/grade/grade.h"
#include "sim/run/grade/tensor_grader.h"
#include "sim/run/record/item_tensors.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>

namespace cpscope {
namespace {

/// Length of a row, infinities excluded; nothing for a row that holds only zeros or infinities.
std::optional<double> row_length(std::span<const double> row) {
  double sum = 0;
  bool is_seen = false;
  for (const double value : row) {
    is_seen = is_seen || (value != 0 && !std::isinf(value));
    sum += std::isfinite(value) ? value * value : 0.0;
  }
  if (!is_seen) return std::nullopt;
  return std::sqrt(sum);
}

/// Elements of a row: lse is [token, head] as a whole tensor and [row, head, 1] as an item's.
int64_t row_lanes(const Tensor& tensor) { return tensor.shape.size() > 2 ? tensor.shape[2] : 1; }

template <class Visit>
void for_each_row(const Tensor& tensor, Visit visit) {
  const int64_t lanes = row_lanes(tensor);
  for (int64_t begin = 0; lanes > 0 && begin + lanes <= tensor.size(); begin += lanes)
    visit(std::span(tensor.values).subspan(static_cast<size_t>(begin), static_cast<size_t>(lanes)),
          begin);
}

/// Allowed error of a typical row of a whole tensor: the budget over the rows that are not empty.
double typical_row_error(const Tensor& whole, double budget_l2) {
  int64_t rows = 0;
  for_each_row(whole,
               [&](std::span<const double> row, int64_t) { rows += row_length(row) ? 1 : 0; });
  return budget_l2 / std::sqrt(static_cast<double>(std::max<int64_t>(1, rows)));
}

/// Factor on the budget of a sample of `draws` rows.
double sample_factor(double draws) {
  return std::max(1.0, (1 + kSigmas / std::sqrt(2 * std::max(1.0, draws))) / 2);
}

EarnedDistance weigh_item(const Tensor& left, const Tensor& right, double rel_l2, double row_l2) {
  EarnedDistance earned;
  double squares = 0, fourth_powers = 0, worst = -1;
  for_each_row(right, [&](std::span<const double> row, int64_t begin) {
    const auto other = std::span(left.values).subspan(static_cast<size_t>(begin), row.size());
    const std::optional<double> length = row_length(row);
    if (!length && !row_length(other)) return;
    const double allowed = rel_l2 * length.value_or(0.0) + row_l2;
    squares += allowed * allowed;
    fourth_powers += std::pow(allowed, 4);
    const double apart = row_distance(other, row), limit = kSigmas / 2 * allowed;
    const double excess =
        apart == 0 ? 0.0 : (limit > 0 ? apart / limit : std::numeric_limits<double>::infinity());
    if (excess <= worst) return;
    worst = earned.row_excess = excess;
    earned.row_begin = begin;
  });
  if (fourth_powers > 0)
    earned.allowed_l2 = sample_factor(squares * squares / fourth_powers) * std::sqrt(squares);
  return earned;
}

const TensorBudget* find_budget(const RunRecord& record, const std::string& name) {
  for (const TensorBudget& budget : record.budgets) {
    if (budget.name == name) return &budget;
  }
  return nullptr;
}

}  // namespace

EarnedTolerance::EarnedTolerance(const RunRecord& a, const RunRecord& b) {
  for (const TensorBudget& left : a.budgets) {
    const TensorBudget* right = find_budget(b, left.name);
    const Tensor* whole = b.find(left.name);
    if (right == nullptr || whole == nullptr) continue;
    ArrayBudget sum{left.name, 0.0, left.l2 + right->l2, 0.0};
    // An answer whose allowed error is as large as itself says nothing about its parts.
    sum.rel_l2 = std::min(left.rel_l2, 1.0) + std::min(right->rel_l2, 1.0);
    sum.row_l2 =
        share_of_typical_row(left.name, row_lanes(*whole)) * typical_row_error(*whole, sum.l2);
    budgets_.push_back(std::move(sum));
  }
}

const EarnedTolerance::ArrayBudget* EarnedTolerance::find(const std::string& name) const {
  for (const ArrayBudget& budget : budgets_) {
    if (budget.name == name) return &budget;
  }
  return nullptr;
}

std::optional<EarnedDistance> EarnedTolerance::weigh(const Tensor& left,
                                                     const Tensor& right) const {
  const std::optional<ItemTensorName> item = parse_item_name(right.name);
  const ArrayBudget* budget = find(item ? item->array : right.name);
  if (budget == nullptr) return std::nullopt;
  if (!item) return EarnedDistance{.allowed_l2 = budget->l2};
  return weigh_item(left, right, budget->rel_l2, budget->row_l2);
}

}  // namespace cpscope
