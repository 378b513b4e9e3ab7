#include "sim/run/grade/row_scan.h"

#include "sim/run/grade/probe_parts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace cpscope {
namespace {

/// Number of suspects of one kind in one tensor: a systematic error shows in the first few.
constexpr size_t kMostOfAKind = 8;

/// True if the row has the value of an empty row.
bool is_empty_row(const double* row, int64_t lanes, double nothing) {
  return std::all_of(row, row + lanes, [&](double value) { return value == nothing; });
}

/// Tokens whose rows look alike in one way: the first and an even sample of the others.
class Suspects {
 public:
  void add(int64_t token) {
    if (!tokens_.empty() && tokens_.back() == token) return;
    if (seen_++ % stride_ != 0) return;
    tokens_.push_back(token);
    if (tokens_.size() <= kMostOfAKind) return;
    // Keep every other token, and from now on take only every other new one.
    for (size_t i = 0; 2 * i < tokens_.size(); ++i) tokens_[i] = tokens_[2 * i];
    tokens_.resize((tokens_.size() + 1) / 2);
    stride_ *= 2;
  }
  const std::vector<int64_t>& tokens() const { return tokens_; }

 private:
  std::vector<int64_t> tokens_;
  int64_t seen_ = 0, stride_ = 1;
};

/// The longest and the shortest rows that are not zero.
class Extremes {
 public:
  void add(double length, int64_t token) {
    keep(longest_, length, token, [](double a, double b) { return a > b; });
    keep(shortest_, length, token, [](double a, double b) { return a < b; });
  }
  void append_to(std::vector<int64_t>& tokens) const {
    for (const auto* list : {&longest_, &shortest_})
      for (const auto& [length, token] : *list) tokens.push_back(token);
  }

 private:
  using List = std::vector<std::pair<double, int64_t>>;
  template <class Before>
  static void keep(List& list, double length, int64_t token, Before before) {
    constexpr size_t kKept = 4;
    if (list.size() == kKept && !before(length, list.back().first)) return;
    const auto place = std::find_if(list.begin(), list.end(),
                                    [&](const auto& one) { return before(length, one.first); });
    list.insert(place, {length, token});
    if (list.size() > kKept) list.pop_back();
  }
  List longest_, shortest_;
};

class Scanner {
 public:
  Scanner(const Tensor& tensor, const char* name, Side side, double largest)
      : tensor_(tensor),
        heads_(tensor.shape[1]),
        lanes_(tensor.shape.size() > 2 ? tensor.shape[2] : 1),
        is_lse_(tensor.shape.size() == 2),
        largest_(largest) {
    scan_.name = name;
    scan_.tensor = &tensor;
    scan_.side = side;
    scan_.rows = tensor.shape[0] * heads_;
  }

  void look_at(int64_t token, int64_t head, bool may_hold) {
    const double* row = tensor_.values.data() + (token * heads_ + head) * lanes_;
    const int64_t nan = std::count_if(row, row + lanes_, [](double v) { return std::isnan(v); });
    const int64_t infinite =
        std::count_if(row, row + lanes_, [](double v) { return std::isinf(v); });
    const double nothing = is_lse_ ? -HUGE_VAL : 0.0;
    if (!may_hold) {
      scan_.nan += nan;
      if (is_empty_row(row, lanes_, nothing)) return;
      ++scan_.not_empty;
      note(token, head, nothing, row);
      return;
    }
    if (nan + infinite > 0) {
      scan_.nan += nan;
      scan_.infinite += infinite;
      note(token, head, std::numeric_limits<double>::quiet_NaN(), row);
      return;
    }
    suspect(token, row);
  }

  RowScan finish() {
    for (const Suspects* kind : {&zero_, &constant_, &repeated_, &large_})
      scan_.suspects.insert(scan_.suspects.end(), kind->tokens().begin(), kind->tokens().end());
    extremes_.append_to(scan_.suspects);
    return std::move(scan_);
  }

 private:
  void note(int64_t token, int64_t head, double expected, const double* row) {
    if (scan_.first) return;
    const double* worst = std::find_if(
        row, row + lanes_, [&](double v) { return !std::isfinite(v) || v != expected; });
    scan_.first = WorstPlace{.token = token,
                             .head = static_cast<int32_t>(head),
                             .expected = expected,
                             .seen = worst == row + lanes_ ? *row : *worst};
  }

  void suspect(int64_t token, const double* row) {
    double square = 0, largest = 0;
    bool is_constant = lanes_ > 1;
    for (int64_t lane = 0; lane < lanes_; ++lane) {
      square += row[lane] * row[lane];
      largest = std::max(largest, std::abs(row[lane]));
      is_constant = is_constant && row[lane] == row[0];
    }
    if (square == 0) {
      zero_.add(token);
      return;
    }
    if (is_constant) constant_.add(token);
    if (largest > largest_) large_.add(token);
    const double* before = token > 0 ? row - heads_ * lanes_ : nullptr;
    if (before != nullptr && std::equal(row, row + lanes_, before)) repeated_.add(token);
    extremes_.add(square, token);
  }

  const Tensor& tensor_;
  const int64_t heads_, lanes_;
  const bool is_lse_;
  const double largest_;  // upper bound of a right value
  RowScan scan_;
  Suspects zero_, constant_, repeated_, large_;
  Extremes extremes_;
};

double largest_value(const Tensor& tensor) {
  double largest = 0;
  for (const double value : tensor.values)
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  return largest;
}

}  // namespace

std::vector<RowScan> scan_rows(const Plan& plan, const RunInputs& inputs, const Answer& seen,
                               const LiveRows& live) {
  std::vector<RowScan> scans;
  const auto scan = [&](const char* name, const Tensor& tensor, Side side, double largest) {
    if (tensor.values.empty()) return;
    Scanner scanner(tensor, name, side, largest);
    const std::vector<bool>& may_hold = side == Side::q ? live.queries : live.keys;
    for (int64_t token = 0; token < tensor.shape[0]; ++token) {
      for (int64_t head = 0; head < tensor.shape[1]; ++head)
        scanner.look_at(token, head, may_hold[static_cast<size_t>(token)]);
    }
    RowScan found = scanner.finish();
    if (found.first)
      found.first->rank = owner_of(plan, side, found.first->token, found.first->head);
    scans.push_back(std::move(found));
  };
  // A weighted mean of values is at most the largest value, up to rounding.
  scan("out", seen.out, Side::q, 1.01 * largest_value(values_of(inputs)));
  scan("lse", seen.lse, Side::q, HUGE_VAL);
  if (!plan.scenario.numerics.backward) return scans;
  scan("dq", seen.dq, Side::q, HUGE_VAL);
  scan("dk", seen.dk, Side::kv, HUGE_VAL);
  scan("dv", seen.dv, Side::kv, HUGE_VAL);
  return scans;
}

}  // namespace cpscope
