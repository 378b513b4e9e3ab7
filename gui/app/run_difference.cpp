#include "gui/app/run_difference.h"

#include <algorithm>
#include <cmath>

namespace cpscope::gui {
namespace {

/// A grade for the difference of two runs: its budget is their earned tolerance, not the judge's.
TensorGrade grade_difference(const TensorDiff& diff, const Tensor& right) {
  TensorGrade grade;
  grade.name = diff.name;
  double square = 0;
  for (const double value : right.values) square += std::isfinite(value) ? value * value : 0.0;
  const double allowed = diff.earned ? diff.earned->allowed_l2 : 0.0;
  grade.budget = square > 0 ? allowed / std::sqrt(square) : 0.0;
  grade.passed = is_within(diff, {.is_earned = true});
  return grade;
}

const auto* place_of_tensor(const std::string& name) {
  return std::find(kErrorTensors.begin(), kErrorTensors.end(), name);
}

}  // namespace

bool add_differences(const RunRecord& a, const RunRecord& b, const std::vector<TensorDiff>& diffs,
                     RunView& view) {
  bool is_same = true;
  for (const TensorDiff& diff : diffs) {
    if (place_of_tensor(diff.name) == kErrorTensors.end() || !diff.shape_mismatch.empty()) continue;
    const Tensor &left = *a.find(diff.name), &right = *b.find(diff.name);
    const TensorGrade grade = grade_difference(diff, right);
    is_same = is_same && grade.passed;
    view.errors.push_back(measure_errors(left, right, diff.name, &grade));
  }
  std::sort(view.errors.begin(), view.errors.end(), [](const ErrorField& x, const ErrorField& y) {
    return place_of_tensor(x.name) < place_of_tensor(y.name);
  });
  return is_same;
}

}  // namespace cpscope::gui
