#include "gui/model/error_field.h"

#include "sim/base/check.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace cpscope::gui {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// One row on both sides.
struct RowPair {
  const double* seen;
  const double* expected;
  int64_t lanes;
};

/// How far apart two values are: 0 for equal infinities, NaN where one side has one.
double distance(double seen, double expected) {
  if (seen == expected) return 0.0;
  const double difference = std::abs(seen - expected);
  return std::isnan(seen) || std::isnan(expected) ? std::numeric_limits<double>::quiet_NaN()
                                                  : difference;
}

double row_error(const RowPair& row) {
  double sum = 0;
  for (int64_t lane = 0; lane < row.lanes; ++lane) {
    const double apart = distance(row.seen[lane], row.expected[lane]);
    sum += apart * apart;
  }
  return std::sqrt(sum);
}

double row_square(const RowPair& row) {
  double sum = 0;
  for (int64_t lane = 0; lane < row.lanes; ++lane) {
    const double value = row.expected[lane];
    sum += std::isfinite(value) ? value * value : 0.0;
  }
  return sum;
}

/// The lane that is furthest off, a NaN before all.
int64_t furthest_lane(const RowPair& row) {
  int64_t furthest = 0;
  double most = -1;
  for (int64_t lane = 0; lane < row.lanes; ++lane) {
    const double apart = distance(row.seen[lane], row.expected[lane]);
    if (std::isnan(apart)) return lane;
    if (apart <= most) continue;
    most = apart;
    furthest = lane;
  }
  return furthest;
}

double ratio(double error, double size) {
  if (std::isnan(error)) return error;
  if (size > 0) return error / size;
  return error == 0 ? 0.0 : kInfinity;
}

/// Sorts rows worst first: NaN, infinity, then by share; equal ones by place.
bool is_worse(float a, int64_t row_a, float b, int64_t row_b) {
  if (std::isnan(a) != std::isnan(b)) return std::isnan(a);
  if (!std::isnan(a) && a != b) return a > b;
  return row_a < row_b;
}

/// Measures rows one after another, whatever token they belong to.
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

  /// All heads of one token beside row `expected_token` of the other side.
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

  /// `expected_token_of(token)`: where the other side holds the token.
  template <class Place>
  ErrorField finish(const Tensor& expected, Place expected_token_of) {
    field_.rel_l2 = ratio(std::sqrt(error_sum_), std::sqrt(expected_sum_));
    if (std::isnan(field_.rel_l2)) field_.rel_l2 = kInfinity;
    field_.typical_row =
        compared_ > 0 ? std::sqrt(expected_sum_ / static_cast<double>(compared_)) : 0.0;
    std::vector<float> shares = weigh_rows();
    find_worst(shares, expected, expected_token_of);
    field_.shares = MaxPyramid(std::move(shares), field_.tokens, field_.heads);
    return std::move(field_);
  }

 private:
  std::vector<float> weigh_rows() {
    std::vector<float> shares(field_.row_errors.size());
    for (size_t row = 0; row < shares.size(); ++row) {
      const double share =
          field_.share_of(static_cast<int64_t>(row) / field_.heads,
                          static_cast<int32_t>(static_cast<int64_t>(row) % field_.heads));
      shares[row] = static_cast<float>(share);
      ErrorHistogram& histogram = field_.histogram;
      if (share < 0) {
        ++histogram.left_out;
        continue;
      }
      field_.rows_over += field_.is_over(share) ? 1 : 0;
      if (!std::isfinite(share)) {
        ++histogram.broken;
      } else if (share == 0) {
        ++histogram.exact;
      } else {
        ++histogram.bins[static_cast<size_t>(ErrorHistogram::bin_of(share))];
      }
    }
    return shares;
  }

  template <class Place>
  void find_worst(const std::vector<float>& shares, const Tensor& expected,
                  Place expected_token_of) {
    std::vector<int64_t> rows(shares.size());
    std::iota(rows.begin(), rows.end(), int64_t{0});
    std::erase_if(rows, [&](int64_t row) { return shares[row] <= 0; });
    const size_t count = std::min(ErrorField::kMostWorst, rows.size());
    std::partial_sort(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(count), rows.end(),
                      [&](int64_t a, int64_t b) { return is_worse(shares[a], a, shares[b], b); });
    rows.resize(count);
    for (const int64_t row : rows) {
      const int64_t token = row / field_.heads, head = row % field_.heads;
      const RowPair pair{
          seen_.values.data() + row * lanes_,
          expected.values.data() + (expected_token_of(token) * field_.heads + head) * lanes_,
          lanes_};
      const int64_t lane = furthest_lane(pair);
      field_.worst.push_back({token, static_cast<int32_t>(head), static_cast<int32_t>(lane),
                              pair.seen[lane], pair.expected[lane],
                              static_cast<double>(field_.row_errors[static_cast<size_t>(row)]),
                              static_cast<double>(shares[static_cast<size_t>(row)])});
    }
  }

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
  return ratio(row_errors[row], has_row_budgets() ? double{row_budgets[row]} : typical_row);
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
