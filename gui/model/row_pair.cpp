#include "gui/model/row_pair.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

namespace cpscope::gui {
namespace {

/// The distance of two values: 0 for equal infinities, NaN if one side is NaN.
double distance(double seen, double expected) {
  if (seen == expected) return 0.0;
  const double difference = std::abs(seen - expected);
  return std::isnan(seen) || std::isnan(expected) ? std::numeric_limits<double>::quiet_NaN()
                                                  : difference;
}

/// The element with the largest error; a NaN comes before all others.
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

/// Order of rows, worst first: NaN, infinity, then by share; equal ones by position.
bool is_worse(float a, int64_t row_a, float b, int64_t row_b) {
  if (std::isnan(a) != std::isnan(b)) return std::isnan(a);
  if (!std::isnan(a) && a != b) return a > b;
  return row_a < row_b;
}

std::vector<float> count_shares(ErrorField& field) {
  std::vector<float> shares(field.row_errors.size());
  ErrorHistogram& histogram = field.histogram;
  for (size_t row = 0; row < shares.size(); ++row) {
    const auto place = static_cast<int64_t>(row);
    const double share =
        field.share_of(place / field.heads, static_cast<int32_t>(place % field.heads));
    shares[row] = static_cast<float>(share);
    if (share < 0) {
      ++histogram.left_out;
      continue;
    }
    field.rows_over += field.is_over(share) ? 1 : 0;
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

}  // namespace

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

double error_ratio(double error, double size) {
  if (std::isnan(error)) return error;
  if (size > 0) return error / size;
  return error == 0 ? 0.0 : std::numeric_limits<double>::infinity();
}

void weigh_rows(ErrorField& field, const std::function<RowPair(int64_t row)>& pair_of) {
  std::vector<float> shares = count_shares(field);
  std::vector<int64_t> rows(shares.size());
  std::iota(rows.begin(), rows.end(), int64_t{0});
  std::erase_if(rows, [&](int64_t row) { return shares[row] <= 0; });
  const size_t count = std::min(ErrorField::kMostWorst, rows.size());
  std::partial_sort(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(count), rows.end(),
                    [&](int64_t a, int64_t b) { return is_worse(shares[a], a, shares[b], b); });
  rows.resize(count);
  for (const int64_t row : rows) {
    const RowPair pair = pair_of(row);
    const int64_t lane = furthest_lane(pair);
    field.worst.push_back({row / field.heads, static_cast<int32_t>(row % field.heads),
                           static_cast<int32_t>(lane), pair.seen[lane], pair.expected[lane],
                           static_cast<double>(field.row_errors[static_cast<size_t>(row)]),
                           static_cast<double>(shares[static_cast<size_t>(row)])});
  }
  field.shares = MaxPyramid(std::move(shares), field.tokens, field.heads);
}

}  // namespace cpscope::gui
