#include "sim/run/grade/record_diff.h"

#include "sim/run/record/item_tensors.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cpscope {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// |left - right|2 / |right|2 of the pairs seen so far.
class RelativeNorm {
 public:
  void add(double left, double right) {
    if (left == right) {
      if (std::isfinite(right)) right_.add(right);
      return;
    }
    const double difference = left - right;
    if (!std::isfinite(difference)) {
      is_broken_ = true;
      return;
    }
    difference_.add(difference);
    right_.add(right);
  }

  double distance() const {
    return is_broken_ ? kInfinity : difference_.scale * std::sqrt(difference_.sum);
  }

  double value() const {
    if (is_broken_) return kInfinity;
    if (difference_.scale == 0.0) return 0.0;
    if (right_.scale == 0.0) return kInfinity;
    return difference_.scale / right_.scale * std::sqrt(difference_.sum / right_.sum);
  }

 private:
  /// A sum of squares as scale^2 * sum, so that squares of large and tiny doubles stay in range.
  struct ScaledSquares {
    double scale = 0.0;
    double sum = 0.0;

    void add(double value) {
      const double magnitude = std::abs(value);
      if (magnitude == 0.0) return;
      if (magnitude > scale) {
        sum = sum * (scale / magnitude) * (scale / magnitude) + 1.0;
        scale = magnitude;
      } else {
        sum += (magnitude / scale) * (magnitude / scale);
      }
    }
  };

  ScaledSquares difference_;
  ScaledSquares right_;
  bool is_broken_ = false;
};

/// |left - right|, infinite if the difference is undefined.
double distance(double left, double right) {
  if (left == right) return 0.0;
  const double difference = std::abs(left - right);
  return std::isnan(difference) ? kInfinity : difference;
}

void locate_worst(const Tensor& tensor, int64_t index, TensorDiff& diff) {
  const size_t dimensions = tensor.shape.size();
  if (dimensions == 0) return;
  const int64_t last = tensor.shape.back();
  if (dimensions == 1) {
    diff.worst_head = index;
  } else if (dimensions == 2) {
    diff.worst_row = index / last;
    diff.worst_head = index % last;
  } else {
    const int64_t rows_of_first = tensor.size() / tensor.shape.front() / last;
    diff.worst_row = index / last / rows_of_first;
    diff.worst_head = index / last % rows_of_first;
    diff.worst_lane = index % last;
  }
}

void compare_values(const Tensor& a, const Tensor& b, TensorDiff& diff) {
  const int64_t size = static_cast<int64_t>(a.values.size());
  const int64_t lanes = a.shape.empty() ? 1 : a.shape.back();
  RelativeNorm whole;
  RelativeNorm row;
  int64_t worst = -1;
  for (int64_t index = 0; index < size; ++index) {
    const double left = a.values[static_cast<size_t>(index)];
    const double right = b.values[static_cast<size_t>(index)];
    diff.nan_left += std::isnan(left) ? 1 : 0;
    diff.nan_right += std::isnan(right) ? 1 : 0;
    const bool both_nan = std::isnan(left) && std::isnan(right);
    if (!both_nan) {
      whole.add(left, right);
      row.add(left, right);
    }
    if (left != right && !both_nan) {
      ++diff.count_different;
      const double apart = distance(left, right);
      if (worst < 0 || apart > diff.max_abs) {
        worst = index;
        diff.max_abs = apart;
      }
    }
    if ((index + 1) % lanes == 0) {
      diff.worst_row_rel_l2 = std::max(diff.worst_row_rel_l2, row.value());
      row = RelativeNorm();
    }
  }
  diff.l2 = whole.distance();
  diff.rel_l2 = whole.value();
  if (worst < 0) return;
  locate_worst(a, worst, diff);
  diff.left = a.values[static_cast<size_t>(worst)];
  diff.right = b.values[static_cast<size_t>(worst)];
}

TensorDiff lonely_tensor(const Tensor& tensor, std::string finding) {
  TensorDiff diff;
  diff.name = tensor.name;
  diff.shape_mismatch = std::move(finding);
  return diff;
}

TensorDiff diff_tensors(const Tensor& a, const Tensor& b) {
  TensorDiff diff;
  diff.name = a.name;
  if (a.shape != b.shape) {
    diff.shape_mismatch = fmt::format("shapes differ: [{}] on the left, [{}] on the right",
                                      fmt::join(a.shape, ", "), fmt::join(b.shape, ", "));
    return diff;
  }
  CPSCOPE_CHECK(a.values.size() == b.values.size(), "tensors of one shape differ in size",
                a.values.size(), b.values.size());
  compare_values(a, b, diff);
  return diff;
}

/// Sets the worst place of `diff` to the element with the largest difference in the row from
/// `begin` on.
void name_row(const Tensor& a, const Tensor& b, int64_t begin, TensorDiff& diff) {
  int64_t worst = begin;
  double furthest = -1;
  for (int64_t index = begin; index < begin + a.shape.back(); ++index) {
    const double apart =
        distance(a.values[static_cast<size_t>(index)], b.values[static_cast<size_t>(index)]);
    if (apart <= furthest) continue;
    worst = index;
    furthest = apart;
  }
  locate_worst(a, worst, diff);
  diff.left = a.values[static_cast<size_t>(worst)];
  diff.right = b.values[static_cast<size_t>(worst)];
}

std::unordered_map<std::string, const Tensor*> index_tensors(const RunRecord& record) {
  std::unordered_map<std::string, const Tensor*> index;
  for (const Tensor& tensor : record.tensors) index.emplace(tensor.name, &tensor);
  return index;
}

std::vector<TensorDiff> diff_all(const RunRecord& a, const RunRecord& b,
                                 const EarnedTolerance* earned) {
  std::vector<TensorDiff> diffs;
  const auto of_a = index_tensors(a), of_b = index_tensors(b);
  for (const Tensor& left : a.tensors) {
    const auto right = of_b.find(left.name);
    if (right == of_b.end()) {
      diffs.push_back(lonely_tensor(left, "only the left record has it"));
      continue;
    }
    diffs.push_back(diff_tensors(left, *right->second));
    TensorDiff& diff = diffs.back();
    if (earned == nullptr || !diff.shape_mismatch.empty()) continue;
    diff.earned = earned->weigh(left, *right->second);
    // If a row of an item exceeds its allowed distance, report that row.
    if (diff.earned && diff.earned->row_excess > 1)
      name_row(left, *right->second, diff.earned->row_begin, diff);
  }
  for (const Tensor& right : b.tensors) {
    if (!of_a.contains(right.name))
      diffs.push_back(lonely_tensor(right, "only the right record has it"));
  }
  return diffs;
}

}  // namespace

std::vector<TensorDiff> diff_records(const RunRecord& a, const RunRecord& b) {
  return diff_all(a, b, nullptr);
}

std::vector<TensorDiff> diff_runs(const RunRecord& a, const RunRecord& b) {
  const EarnedTolerance earned(a, b);
  return diff_all(a, b, &earned);
}

bool is_within(const TensorDiff& diff, const DiffRule& rule) {
  if (!diff.shape_mismatch.empty()) return false;
  if (diff.is_equal()) return true;
  // A difference that is NaN never passes, however wide a budget is.
  if (rule.is_earned)
    return diff.earned && std::isfinite(diff.l2) && diff.l2 <= diff.earned->allowed_l2 &&
           diff.earned->row_excess <= 1;
  return diff.rel_l2 <= rule.rel_l2;
}

const TensorDiff* find_first_item(const std::vector<TensorDiff>& diffs, const DiffRule& rule) {
  for (const TensorDiff& diff : diffs) {
    if (!is_within(diff, rule) && parse_item_name(diff.name)) return &diff;
  }
  return nullptr;
}

}  // namespace cpscope
