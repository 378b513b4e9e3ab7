#include "sim/run/grade/tensor_grader.h"

#include "sim/run/grade/grade.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// From so many independent errors on their number does not matter.
constexpr size_t kManyDraws = 90;

/// Missing allowance for few draws. An error made of `draws` equal independent errors deviates from
/// its expectation s by t*s, t = kSigmas/sqrt(2*draws). The answer's error may then be (1 + t)*s
/// while twice the plain run's error is 2*(1 - t)*s. The difference between them deviates, as a sum
/// of two, by sqrt(1 + 4)*t from -s. Returns the smaller of both, in units of s: 0 from kManyDraws
/// on.
double missing_statistics(double draws) {
  const double stray = kSigmas / std::sqrt(2 * std::max(1.0, draws));
  const double apart = 1 + stray - 2 * std::max(0.0, 1 - stray);
  return std::max(0.0, std::min(apart, std::sqrt(5.0) * stray - 1));
}

/// Values that one exp flushes to 0 and another does not.
constexpr double kSmallest = std::numeric_limits<double>::min();
/// With fewer rows than this the spread of rows cannot be estimated.
constexpr int64_t kRowsThatTell = 256;

/// A batch has many groups, some with a few rows whose terms cancel: factor on the random
/// allowance.
constexpr double kLuckOfGroups = 1.25;

/// Roundings of the accumulator that a plain run does not show: fp32, or fp64 where everything is
/// fp64.
double accumulator_floor(Dtype dtype) {
  return dtype == Dtype::fp64 ? 1e-13 : 8 * unit_roundoff(Dtype::fp32);
}

/// Error of one row against the exact one; infinity if one side is -inf and the other is not.
double row_error(const double* seen, const double* exact, int64_t lanes) {
  double sum = 0;
  for (int64_t lane = 0; lane < lanes; ++lane) {
    if (seen[lane] == exact[lane]) continue;
    const double difference = seen[lane] - exact[lane];
    if (!std::isfinite(difference)) return HUGE_VAL;
    sum += difference * difference;
  }
  return std::sqrt(sum);
}

double ratio(double error, double norm) {
  if (norm > 0) return error / norm;
  return error == 0 ? 0.0 : HUGE_VAL;
}

int64_t lanes_of(const Tensor& tensor) { return tensor.shape.size() > 2 ? tensor.shape[2] : 1; }

void name_worst(const Compared& sides, int64_t row, int64_t lanes, WorstPlace& worst) {
  const int64_t heads = sides.exact.shape[1];
  const auto place = static_cast<size_t>(row / heads);
  worst.token = sides.places == nullptr ? static_cast<int64_t>(place) : sides.places->tokens[place];
  worst.head = static_cast<int32_t>(row % heads);
  worst.rank = sides.places == nullptr ? 0 : sides.places->rank_of(place, worst.head);
  double furthest = -1;
  for (int64_t i = row * lanes; i < (row + 1) * lanes; ++i) {
    const auto at = static_cast<size_t>(i);
    const double difference = std::abs(sides.seen.values[at] - sides.exact.values[at]);
    const bool is_off = sides.seen.values[at] != sides.exact.values[at];
    if (!(is_off && !(difference <= furthest)) && furthest >= 0) continue;
    if (is_off) furthest = difference;
    worst.expected = sides.exact.values[at];
    worst.seen = sides.seen.values[at];
  }
}

/// True for a row of a valid token, or of a head.
bool is_valid(const Compared& sides, size_t row) {
  const auto heads = static_cast<size_t>(sides.exact.shape[1]);
  return sides.places == nullptr || sides.places->sequences[row / heads] >= 0;
}

/// The group of a judged row; -1 for none.
int64_t group_of(const Compared& sides, GroupKind kind, int64_t row) {
  const int64_t heads = sides.exact.shape[1];
  const auto place = static_cast<size_t>(row / heads);
  switch (kind) {
    case GroupKind::head:
      return row % heads;
    case GroupKind::rank:
      return sides.places->rank_of(place, row % heads);
    case GroupKind::sequence:
      return sides.places->sequences[place];
  }
  return -1;
}

}  // namespace

double typical_rounding(Dtype dtype) { return unit_roundoff(dtype) / std::sqrt(6.0); }
double typical_rounding(Fp8Type type) { return unit_roundoff(type) / std::sqrt(6.0); }

double row_distance(std::span<const double> left, std::span<const double> right) {
  double sum = 0;
  for (size_t lane = 0; lane < left.size(); ++lane) {
    const bool both_nan = std::isnan(left[lane]) && std::isnan(right[lane]);
    if (left[lane] == right[lane] || both_nan) continue;
    const double difference = left[lane] - right[lane];
    sum +=
        std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference * difference;
  }
  return std::sqrt(sum);
}

double row_norm(const double* row, int64_t lanes) {
  double sum = 0;
  for (int64_t lane = 0; lane < lanes; ++lane)
    sum += std::isfinite(row[lane]) ? row[lane] * row[lane] : 0.0;
  return std::sqrt(sum);
}

std::string_view to_name(GroupKind value) {
  constexpr std::string_view kNames[] = {"head", "rank", "sequence"};
  return kNames[static_cast<size_t>(value)];
}

std::string describe_worst_group(const TensorGrade& tensor) {
  std::string text;
  double worst = 0;
  for (int kind = 0; kind < kGroupKinds; ++kind) {
    for (const GroupGrade& group : tensor.groups[kind]) {
      const double excess =
          std::max(group.budget > 0 ? group.rel_l2 / group.budget : HUGE_VAL, group.excess_of_rows);
      if (group.passed || !(excess > worst)) continue;
      worst = excess;
      text = fmt::format("the error of {} {} is {:.3g} times its budget",
                         to_name(static_cast<GroupKind>(kind)), group.index, excess);
    }
  }
  return text;
}

/// Sums of squares over rows.
struct TensorGrader::Sums {
  double error = 0, plain = 0, norm = 0, expected = 0, expected_squares = 0;
  double of_terms = 0;  // expected from roundings of the terms, each on its own
  double elements = 0;

  void add(const Sums& other) {
    error += other.error;
    plain += other.plain;
    norm += other.norm;
    expected += other.expected;
    expected_squares += other.expected * other.expected;
    of_terms += other.of_terms;
    elements += other.elements;
  }
  /// Number of rows over which the expected error would be spread evenly.
  double draws() const {
    return expected_squares > 0 ? expected * expected / expected_squares : 0.0;
  }
};

/// The measures of the rows of a tensor.
struct TensorGrader::Weighed {
  int64_t lanes = 1;
  std::vector<Sums> rows;
  std::vector<double> lengths;  // [row] the errors of its terms are proportional to this
  double length = 0;            // of all rows together
  double plain_rate = 0;        // the plain run's error over these lengths
  double row_draws = 1;         // number of independent errors in a row
  double distinct_rows = std::numeric_limits<double>::infinity();
  Sums whole;

  /// Expected squared error of a row.
  double expect(size_t row) const {
    return rows[row].expected + std::pow(plain_rate * lengths[row], 2);
  }
};

TensorGrader::TensorGrader(Dtype dtype, const Options& options)
    : options_(options), floor_(accumulator_floor(dtype)) {}

TensorGrader::Weighed TensorGrader::weigh(const Compared& sides) const {
  Weighed weighed;
  weighed.lanes = std::max<int64_t>(1, lanes_of(sides.exact));
  const int64_t lanes = weighed.lanes, rows = sides.exact.size() / lanes;
  weighed.rows.resize(static_cast<size_t>(rows));
  weighed.lengths.resize(static_cast<size_t>(rows));
  double lengths = 0;
  for (int64_t row = 0; row < rows; ++row) {
    Sums& sums = weighed.rows[static_cast<size_t>(row)];
    const double* exact = sides.exact.values.data() + row * lanes;
    const double error = row_error(sides.seen.values.data() + row * lanes, exact, lanes);
    const double plain = row_error(sides.plain.values.data() + row * lanes, exact, lanes);
    const double norm = row_norm(exact, lanes);
    sums.error = error * error;
    sums.plain = std::isfinite(plain) ? plain * plain : 0.0;
    sums.norm = norm * norm;
    sums.elements = static_cast<double>(lanes);
    // Empty rows have no expected error. Others may be exactly zero, as the gradients of a query
    // that sees one key, and have that of the terms which cancel.
    const bool may_err =
        norm > 0 || (!sides.is_empty.empty() && !sides.is_empty[static_cast<size_t>(row)]);
    if (may_err) {
      const double carried = sides.carried.empty() ? 0.0 : sides.carried[static_cast<size_t>(row)];
      sums.expected = std::pow(sides.rounding, 2) * sums.norm + carried * carried;
    }
    const double terms = sides.terms.empty() ? 0.0 : sides.terms[static_cast<size_t>(row)];
    if (may_err) sums.of_terms = std::pow(sides.of_terms * terms, 2);
    weighed.whole.add(sums);
    weighed.lengths[static_cast<size_t>(row)] = std::hypot(norm, terms);
  }
  for (const double length : weighed.lengths) lengths += length * length;
  if (sides.terms.empty() && rows > 0) {
    const double typical = std::sqrt(weighed.whole.norm / static_cast<double>(rows));
    for (double& length : weighed.lengths) length += typical;
  }
  weighed.length = std::sqrt(lengths);
  if (lengths > 0) weighed.plain_rate = std::sqrt(weighed.whole.plain / lengths);
  weighed.row_draws = count_row_draws(weighed);
  weighed.distinct_rows = count_distinct_rows(sides, weighed);
  return weighed;
}

/// Rows that are rounded to the same numbers have the same error, not independent ones: with even
/// weights those of all queries. Infinity if so many are different that it does not matter.
double TensorGrader::count_distinct_rows(const Compared& sides, const Weighed& weighed) {
  if (sides.rounding == 0) return std::numeric_limits<double>::infinity();
  const double step = sides.rounding * std::sqrt(6.0);  // unit roundoff
  std::set<std::vector<double>> distinct;
  for (size_t row = 0; row < weighed.rows.size(); ++row) {
    if (weighed.rows[row].expected == 0) continue;
    std::vector<double> codes;
    for (int64_t lane = 0; lane < weighed.lanes; ++lane) {
      int exponent = 0;
      const double part = std::frexp(
          sides.exact.values[row * static_cast<size_t>(weighed.lanes) + static_cast<size_t>(lane)],
          &exponent);
      codes.push_back(std::isfinite(part) ? std::ldexp(std::round(part / step), exponent) : 0.0);
    }
    distinct.insert(std::move(codes));
    if (distinct.size() >= kManyDraws) return std::numeric_limits<double>::infinity();
  }
  return static_cast<double>(distinct.size());
}

/// The elements of a row may have a common error (one weight is off) or independent ones (each is
/// rounded). The ratio of the plain run's squared errors to the expected ones shows which: for n
/// independent errors it deviates by sqrt(2/n).
double TensorGrader::count_row_draws(const Weighed& weighed) {
  double sum = 0, squares = 0;
  int64_t count = 0;
  for (size_t row = 0; row < weighed.rows.size(); ++row) {
    const double expected = weighed.expect(row);
    if (expected == 0) continue;
    const double share = weighed.rows[row].plain / expected;
    sum += share;
    squares += share * share;
    ++count;
  }
  if (count < kRowsThatTell || sum == 0) return 1;
  const double mean = sum / static_cast<double>(count);
  const double variance = squares / static_cast<double>(count) / (mean * mean) - 1;
  return std::clamp(2 / std::max(variance, 1e-9), 1.0, static_cast<double>(weighed.lanes));
}

/// Allowed error of several rows together; `scale`: their part of all independent errors; `luck`:
/// factor on the random allowance for few rows.
double TensorGrader::allow(const Compared& sides, const Sums& sums, const Draws& of, double scale,
                           double luck) const {
  const double alone = of.in_row * std::min(sums.draws(), std::max(1.0, of.distinct_rows * scale)),
               draws = std::min(alone, std::max(1.0, sides.sources * scale));
  return 2 * std::sqrt(sums.plain) +
         floor_ * (sides.magnitude * std::sqrt(sums.elements) + std::sqrt(sums.norm)) +
         luck * std::hypot(missing_statistics(draws) * std::sqrt(sums.expected),
                           missing_statistics(alone) * std::sqrt(sums.of_terms)) +
         sides.known.rms * std::sqrt(sums.elements);
}

double TensorGrader::widen(const Compared& sides, const Sums& sums, double allowed) {
  return std::max(allowed, sides.widened * std::sqrt(sums.norm));
}

TensorGrade TensorGrader::grade(const Compared& sides) const {
  TensorGrade grade;
  grade.name = sides.name;
  if (sides.seen.shape != sides.exact.shape) {
    grade.passed = false;
    grade.rel_l2 = HUGE_VAL;
    return grade;
  }
  const Weighed weighed = weigh(sides);
  grade.rows = grade.judged_rows = static_cast<int64_t>(weighed.rows.size());
  const double norm = std::sqrt(weighed.whole.norm), error = std::sqrt(weighed.whole.error),
               earned = allow(sides, weighed.whole, {1.0, weighed.distinct_rows}, 1.0, 1.0),
               allowed = widen(sides, weighed.whole, earned);
  for (const double value : sides.seen.values) grade.nan += std::isnan(value) ? 1 : 0;
  grade.rel_l2 = ratio(error, norm);
  grade.budget = ratio(allowed, norm);
  grade.budget_l2 = allowed;
  grade.is_widened = allowed > earned;
  // Where terms cancel to a small rest, as dq of a query with one key, zeros are right.
  constexpr double kRest = 1.0 / 16;
  grade.allows_zeros = !sides.terms.empty() && norm > kRest * weighed.length && allowed >= norm;
  // A budget that is NaN or infinite would accept everything.
  grade.passed = grade.nan == 0 && std::isfinite(allowed) && error <= allowed;
  if (sides.places != nullptr) {
    for (int kind = 0; kind < kGroupKinds; ++kind)
      grade_groups(sides, weighed, static_cast<GroupKind>(kind), grade);
  }
  grade_rows(sides, weighed, grade);
  return grade;
}

/// Rows of one head, rank or sequence, as lengths and relative to the expected error of each row:
/// among long rows that are right, short ones that are wrong show only in the relative errors.
struct TensorGrader::Group {
  Sums sums;
  double error = 0, plain = 0;  // squared errors over expected ones, summed
  double rows = 0;              // with an expected error
};

void TensorGrader::grade_groups(const Compared& sides, const Weighed& weighed, GroupKind kind,
                                TensorGrade& grade) const {
  const int64_t count = kind == GroupKind::head   ? sides.exact.shape[1]
                        : kind == GroupKind::rank ? options_.ranks
                                                  : options_.sequences;
  std::vector<Group> groups(static_cast<size_t>(count));
  for (size_t row = 0; row < weighed.rows.size(); ++row) {
    const int64_t index = group_of(sides, kind, static_cast<int64_t>(row));
    if (index < 0) continue;
    Group& group = groups[static_cast<size_t>(index)];
    Sums sums = weighed.rows[row];
    // The plain run may by chance be too good in all of a few rows: its error elsewhere counts too.
    sums.expected = weighed.expect(row);
    group.sums.add(sums);
    const double known =
        floor_ * (sides.magnitude * std::sqrt(sums.elements) + std::sqrt(sums.norm)) +
        sides.known.row * std::sqrt(sums.elements);
    const double expected = sums.expected + known * known;
    if (expected == 0) continue;
    group.error += sums.error / expected;
    group.plain += sums.plain / expected;
    ++group.rows;
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    const Sums& sums = groups[g].sums;
    if (sums.elements == 0) continue;
    const double scale = weighed.whole.elements > 0 ? sums.elements / weighed.whole.elements : 1.0;
    const double allowed =
        widen(sides, sums,
              sides.group_room * allow(sides, sums, {weighed.row_draws, weighed.distinct_rows},
                                       scale, kLuckOfGroups));
    const double error = std::sqrt(sums.error), norm = std::sqrt(sums.norm);
    const bool has_passed = std::isfinite(allowed) && error <= allowed;
    const double excess =
        sides.widened > 0 ? 0.0 : excess_of_rows(sides, groups[g], weighed, scale);
    grade.groups[static_cast<int>(kind)].push_back({static_cast<int64_t>(g), ratio(error, norm),
                                                    ratio(allowed, norm), excess,
                                                    has_passed && excess <= 1});
    if (!has_passed || excess > 1) grade.passed = grade.groups_passed = false;
  }
}

/// Errors of the rows of a group, each relative to its expected error, over their allowed sum;
/// above 1 fails.
double TensorGrader::excess_of_rows(const Compared& sides, const Group& group,
                                    const Weighed& weighed, double scale) const {
  if (group.rows == 0) return 0.0;
  const double draws = std::min(
      weighed.row_draws * std::min(group.rows, std::max(1.0, weighed.distinct_rows * scale)),
      std::max(1.0, sides.sources * scale));
  const double seen = std::sqrt(group.error / group.rows),
               plain = std::sqrt(group.plain / group.rows);
  return seen / (sides.group_room *
                 (2 * std::max(plain, 1.0) + kLuckOfGroups * missing_statistics(draws)));
}

void TensorGrader::grade_rows(const Compared& sides, const Weighed& weighed,
                              TensorGrade& grade) const {
  const int64_t lanes = weighed.lanes;
  const double width = std::sqrt(static_cast<double>(lanes));
  double worst_excess = -1;
  bool names_wrong_valid_row = false;
  for (size_t row = 0; row < weighed.rows.size(); ++row) {
    const Sums& sums = weighed.rows[row];
    const double error = std::sqrt(sums.error), norm = std::sqrt(sums.norm);
    // Where few rows are judged, all errors of the plain run may by chance be small.
    const double typical =
        std::max(weighed.plain_rate * weighed.lengths[row], std::sqrt(sums.of_terms));
    const double explained = std::sqrt(sums.plain) + typical + std::sqrt(sums.expected) +
                             floor_ * (sides.magnitude * width + norm);
    const bool is_empty = !sides.is_empty.empty() && sides.is_empty[row];
    const double allowed = is_empty ? kSmallest
                                    : std::max(kSigmas * explained + sides.known.row * width,
                                               kSigmas / 2 * sides.widened * weighed.lengths[row]);
    if (options_.keeps_row_budgets) grade.row_budgets.push_back(static_cast<float>(allowed));
    // A row whose terms cancel is small by chance: its error is compared with the terms' length. A
    // row that should be zero has no relative error; its absolute error is in max_abs.
    const double length =
        std::max(norm, sides.terms.empty() ? weighed.lengths[row] - norm : sides.terms[row]);
    if (error > 0 && (norm > 0 || !std::isfinite(error)))
      grade.worst_row_rel_l2 = std::max(grade.worst_row_rel_l2, ratio(error, length));
    const double excess =
        allowed > 0 && std::isfinite(allowed) ? error / allowed : (error > 0 ? HUGE_VAL : 0.0);
    if (excess > 1) grade.passed = grade.rows_passed = false;
    for (size_t i = row * static_cast<size_t>(lanes); i < (row + 1) * static_cast<size_t>(lanes);
         ++i) {
      const double difference = std::abs(sides.seen.values[i] - sides.exact.values[i]);
      if (sides.seen.values[i] != sides.exact.values[i] && !(difference <= grade.max_abs))
        grade.max_abs = difference;
    }
    grade.worst_row_excess =
        std::isnan(excess) ? HUGE_VAL : std::max(grade.worst_row_excess, excess);
    // Padding is named only if no valid row is wrong.
    const bool is_wrong_valid_row = is_valid(sides, row) && !(excess <= 1);
    if (names_wrong_valid_row && !is_wrong_valid_row) continue;
    const bool is_first_of_kind = is_wrong_valid_row && !names_wrong_valid_row;
    if (excess <= worst_excess && !std::isnan(excess) && !is_first_of_kind) continue;
    names_wrong_valid_row = is_wrong_valid_row;
    worst_excess = excess;
    name_worst(sides, static_cast<int64_t>(row), lanes, grade.worst);
  }
}

}  // namespace cpscope
