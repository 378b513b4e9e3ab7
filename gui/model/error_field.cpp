#include "gui/model/error_field.h"

#include "gui/model/row_pair.h"
#include "sim/base/check.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace cpscope::gui {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Measures rows one after another, for any pairing of tokens.
class FieldMaker {
 public:
  FieldMaker(const Tensor& seen, std::string name, const TensorGrade* graded) : seen_(seen) {
    field_.name = std::move(name);
    field_.tokens = seen.shape[0];
    field_.heads = static_cast<int32_t>(seen.shape[1]);
    lanes_ = seen.shape.size() > 2 ? seen.shape[2] : 1;
    field_.row_errors.assign(static_cast<size_t>(field_.tokens * field_.heads),
                             MaxPyramid::kNothing);
    if (graded == nullptr) return;
    field_.budget = graded->budget;
    field_.passed = graded->passed;
    if (graded->row_budgets.size() == field_.row_errors.size())
      field_.row_budgets = graded->row_budgets;
  }

  /// Compares all heads of one token with row `expected_token` of the other side.
  void measure_token(const Tensor& expected, int64_t expected_token, int64_t token) {
    for (int64_t head = 0; head < field_.heads; ++head) {
      const int64_t row = token * field_.heads + head;
      const RowPair pair{seen_.values.data() + row * lanes_,
                         expected.values.data() + (expected_token * field_.heads + head) * lanes_,
                         lanes_};
      const double error = row_error(pair);
      field_.row_errors[static_cast<size_t>(row)] = static_cast<float>(error);
      error_sum_ += error * error;
      expected_sum_ += row_square(pair);
      field_.nan += std::count_if(pair.seen, pair.seen + lanes_,
                                  [](double value) { return std::isnan(value); });
    }
    compared_ += field_.heads;
  }

  /// `expected_token_of(token)`: the row of the token on the other side.
  template <class Place>
  ErrorField finish(const Tensor& expected, Place expected_token_of) {
    field_.rel_l2 = error_ratio(std::sqrt(error_sum_), std::sqrt(expected_sum_));
    if (std::isnan(field_.rel_l2)) field_.rel_l2 = kInfinity;
    field_.typical_row =
        compared_ > 0 ? std::sqrt(expected_sum_ / static_cast<double>(compared_)) : 0.0;
    weigh_rows(field_, [&](int64_t row) {
      const int64_t token = row / field_.heads, head = row % field_.heads;
      return RowPair{
          seen_.values.data() + row * lanes_,
          expected.values.data() + (expected_token_of(token) * field_.heads + head) * lanes_,
          lanes_};
    });
    return std::move(field_);
  }

 private:
  const Tensor& seen_;
  int64_t lanes_ = 1;
  int64_t compared_ = 0;
  double error_sum_ = 0, expected_sum_ = 0;
  ErrorField field_;
};

}  // namespace

int64_t ErrorHistogram::compared() const {
  return std::accumulate(bins.begin(), bins.end(), exact + broken);
}

int32_t ErrorHistogram::bin_of(double share) {
  const double place = std::floor((std::log10(share) - kFirstDecade) * kBinsPerDecade);
  return static_cast<int32_t>(std::clamp(place, 0.0, double{kDecades * kBinsPerDecade - 1}));
}

double ErrorHistogram::begin_of(int32_t bin) {
  return std::pow(10.0, kFirstDecade + static_cast<double>(bin) / kBinsPerDecade);
}

double ErrorField::share_of(int64_t token, int32_t head) const {
  const auto row = static_cast<size_t>(token * heads + head);
  if (row_errors[row] < 0) return MaxPyramid::kNothing;
  return error_ratio(row_errors[row], has_row_budgets() ? double{row_budgets[row]} : typical_row);
}

bool ErrorField::is_over(double share) const {
  return !std::isfinite(share) || (has_row_budgets() && share > 1);
}

bool ErrorField::has_budget() const { return budget > 0 && std::isfinite(budget); }

ErrorField measure_errors(const Tensor& seen, const Tensor& expected, std::string name,
                          const TensorGrade* graded) {
  CPSCOPE_CHECK(seen.shape == expected.shape && seen.shape.size() >= 2,
                "errors are measured between tensors of one shape", seen.size(), expected.size());
  FieldMaker maker(seen, std::move(name), graded);
  for (int64_t token = 0; token < seen.shape[0]; ++token)
    maker.measure_token(expected, token, token);
  return maker.finish(expected, [](int64_t token) { return token; });
}

ErrorField measure_sampled_errors(const Tensor& seen, const Tensor& expected,
                                  std::span<const int64_t> judged, std::string name,
                                  const TensorGrade* graded) {
  CPSCOPE_CHECK(expected.shape.size() == seen.shape.size() &&
                    expected.shape[0] == static_cast<int64_t>(judged.size()),
                "the judged rows are not as many as the sampled ones", expected.shape[0],
                judged.size());
  FieldMaker maker(seen, std::move(name), graded);
  for (size_t i = 0; i < judged.size(); ++i)
    maker.measure_token(expected, static_cast<int64_t>(i), judged[i]);
  return maker.finish(expected, [&](int64_t token) {
    return std::lower_bound(judged.begin(), judged.end(), token) - judged.begin();
  });
}

}  // namespace cpscope::gui
