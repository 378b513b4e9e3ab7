#include "sim/run/grade/wrong_rows.h"

#include "sim/run/grade/tensor_grader.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace cpscope {
namespace {

/// `count` of the rows, spread over all of them without a period, the first of them too.
std::vector<JudgedRow> spread(const std::vector<JudgedRow>& rows, size_t count) {
  count = std::min(count, rows.size());
  std::vector<JudgedRow> chosen, mixed;
  const double stride = static_cast<double>(rows.size()) / static_cast<double>(count);
  for (size_t n = 0; n < count; ++n) {
    constexpr double kGolden = 0.6180339887498949;
    const double place =
        (static_cast<double>(n) + std::fmod(static_cast<double>(n + 1) * kGolden, 1.0)) * stride;
    chosen.push_back(rows[std::min(rows.size() - 1, static_cast<size_t>(place))]);
  }
  // Every fifth one, then the next ones: a few first rows lie far apart.
  constexpr size_t kStride = 5;
  for (size_t first = 0; first < kStride; ++first)
    for (size_t n = first; n < chosen.size(); n += kStride) mixed.push_back(chosen[n]);
  return mixed;
}

/// The rows beyond their budgets, wider by the roundoff times their length.
WrongTensor rows_beyond(const TensorGrade& tensor, const Tensor& seen, const Tensor& exact,
                        double roundoff, Side side, const std::vector<int64_t>& tokens,
                        const std::vector<bool>& is_valid, const SampleSizes& sizes) {
  const int64_t heads = exact.shape[1], lanes = exact.shape.size() > 2 ? exact.shape[2] : 1;
  WrongTensor found{.name = tensor.name, .side = side, .budget = tensor.budget, .lanes = lanes};
  std::vector<std::pair<double, JudgedRow>> rows;  // [judged row] by its excess
  std::vector<JudgedRow> wrong_padding;
  for (size_t place = 0; place < tokens.size(); ++place) {
    for (int64_t head = 0; head < heads; ++head) {
      const size_t row = place * static_cast<size_t>(heads) + static_cast<size_t>(head);
      const auto take = [&](const Tensor& from, size_t index) {
        return std::span(from.values)
            .subspan(index * static_cast<size_t>(lanes), static_cast<size_t>(lanes));
      };
      JudgedRow judged{{tokens[place], static_cast<int32_t>(head)},
                       take(seen, static_cast<size_t>(tokens[place] * heads + head)),
                       take(exact, row),
                       tensor.row_budgets[row]};
      judged.allowed += roundoff * row_norm(judged.exact.data(), lanes);
      const double distance = row_distance(judged.seen, judged.exact);
      if (!is_valid[static_cast<size_t>(tokens[place])]) {
        if (distance > judged.allowed) wrong_padding.push_back(judged);
        continue;
      }
      rows.emplace_back(judged.allowed > 0 ? distance / judged.allowed
                        : distance > 0     ? std::numeric_limits<double>::infinity()
                                           : 0.0,
                        judged);
    }
  }
  // A tensor may fail as a whole, or in a head, while no row alone does.
  for (const double threshold : {1.0, 0.5, 0.25}) {
    std::vector<JudgedRow> right;
    for (const auto& [excess, row] : rows)
      (excess > threshold ? found.all_wrong : right).push_back(row);
    found.is_padding = found.all_wrong.empty() && threshold == 1.0 && !wrong_padding.empty();
    if (found.is_padding) found.all_wrong = wrong_padding;
    if (found.all_wrong.empty()) continue;
    found.right = spread(right, sizes.right);
    break;
  }
  found.wrong = spread(found.all_wrong, sizes.wrong);
  return found;
}

/// The narrower type that holds all values.
std::optional<Dtype> narrow_type_of(const Tensor& tensor, Dtype dtype) {
  for (const Dtype narrow : {Dtype::bf16, Dtype::fp16})
    if (unit_roundoff(narrow) > unit_roundoff(dtype) &&
        std::all_of(tensor.values.begin(), tensor.values.end(), [&](double value) {
          return !std::isfinite(value) || round_to(narrow, value) == value;
        }))
      return narrow;
  return std::nullopt;
}

}  // namespace

std::optional<Tensor Answer::*> member_of(std::string_view name) {
  for (const auto& [known, member] :
       std::initializer_list<std::pair<std::string_view, Tensor Answer::*>>{{"out", &Answer::out},
                                                                            {"lse", &Answer::lse},
                                                                            {"dq", &Answer::dq},
                                                                            {"dk", &Answer::dk},
                                                                            {"dv", &Answer::dv}})
    if (known == name) return member;
  return std::nullopt;
}

std::span<const double> row_in(const Tensor& tensor, const RowAddress& at) {
  const int64_t lanes = tensor.shape.size() > 2 ? tensor.shape[2] : 1,
                first = (at.token * tensor.shape[1] + at.head) * lanes;
  return std::span(tensor.values).subspan(static_cast<size_t>(first), static_cast<size_t>(lanes));
}

bool WrongTensor::holds_no_number() const {
  return std::all_of(wrong.begin(), wrong.end(), [](const JudgedRow& row) {
    return std::all_of(row.seen.begin(), row.seen.end(), [](double value) {
      return !(value < std::numeric_limits<double>::infinity());
    });
  });
}

double WrongTensor::excess(const JudgedRow& row, std::span<const double> predicted) const {
  // A row of another length may have another error.
  constexpr double kRowsOverTypical = 3.0;
  const double allowed = std::max(
      {row.allowed,
       kRowsOverTypical * std::min(budget, 0.1) * row_norm(predicted.data(), std::ssize(predicted)),
       std::numeric_limits<double>::min()});
  return row_distance(row.seen, predicted) / allowed;
}

bool WrongTensor::explains(const JudgedRow& row, std::span<const double> predicted) const {
  return excess(row, predicted) <= 1 &&
         row_distance(row.seen, predicted) < nearer * row_distance(row.seen, row.exact);
}

WrongTensor find_wrong_rows(const TensorGrade& tensor, const Tensor& seen, const Tensor& exact,
                            Dtype dtype, Side side, const std::vector<int64_t>& tokens,
                            const std::vector<bool>& is_valid, const SampleSizes& sizes) {
  const auto find = [&](double roundoff) {
    return rows_beyond(tensor, seen, exact, roundoff, side, tokens, is_valid, sizes);
  };
  const std::optional<Dtype> narrow = narrow_type_of(seen, dtype);
  if (!narrow) return find(0.0);
  const auto is_wrong = [](const JudgedRow& row) {
    return row_distance(row.seen, row.exact) > row.allowed;
  };
  WrongTensor found = find(2 * unit_roundoff(*narrow));
  if (found.is_padding || std::none_of(found.all_wrong.begin(), found.all_wrong.end(), is_wrong))
    found = find(0.0);
  found.narrow = narrow;
  return found;
}

}  // namespace cpscope
