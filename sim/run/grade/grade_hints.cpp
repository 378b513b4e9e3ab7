#include "sim/run/grade/grade_hints.h"

#include "sim/run/record/foreign_record.h"
#include "sim/run/run_inputs.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cpscope {
namespace {

constexpr double kLog2E = 1.4426950408889634;

/// Sums that compare two vectors. Pairs with a value that is not finite are counted separately.
struct Comparison {
  double seen2 = 0, exact2 = 0, product = 0, error2 = 0;
  int64_t compared = 0;
  int64_t unequal_infinities = 0;

  void add(double seen, double exact) {
    if (!std::isfinite(seen) || !std::isfinite(exact)) {
      if (seen != exact) ++unequal_infinities;
      return;
    }
    ++compared;
    seen2 += seen * seen;
    exact2 += exact * exact;
    product += seen * exact;
    error2 += (seen - exact) * (seen - exact);
  }
  bool is_within(double budget) const {
    return compared > 0 && unequal_infinities == 0 && exact2 > 0 &&
           error2 <= budget * budget * exact2;
  }
};

/// One failed tensor of tokens, and the data that its errors are compared with.
class Explainer {
 public:
  Explainer(const Plan& plan, const TensorGrade& grade, const Tensor& seen, const Tensor& exact)
      : name_(grade.name),
        budget_(std::isfinite(grade.budget) ? grade.budget : 0.0),
        seen_(seen),
        exact_(exact),
        tokens_(exact.shape[0]),
        heads_(exact.shape[1]),
        lanes_(exact.shape.size() > 2 ? exact.shape[2] : 1),
        side_(grade.name == "dk" || grade.name == "dv" ? Side::kv : Side::q),
        slots_(plan.layout.slots),
        runs_(plan.layout.runs(side_)) {}

  /// The first explanation that fits.
  std::optional<std::string> explain() const {
    if (seen_.shape != exact_.shape) return std::nullopt;
    for (const auto attempt :
         {&Explainer::explain_zeros, &Explainer::explain_padding, &Explainer::explain_infinities,
          &Explainer::explain_factor, &Explainer::explain_order, &Explainer::explain_heads,
          &Explainer::explain_ranks}) {
      if (auto words = (this->*attempt)()) return name_ + ": " + *words;
    }
    return std::nullopt;
  }

 private:
  double at(const Tensor& tensor, int64_t token, int64_t head, int64_t lane) const {
    return tensor.values[(token * heads_ + head) * lanes_ + lane];
  }

  void add_row(int64_t seen_token, int64_t seen_head, int64_t token, int64_t head,
               Comparison& sums) const {
    for (int64_t lane = 0; lane < lanes_; ++lane)
      sums.add(at(seen_, seen_token, seen_head, lane), at(exact_, token, head, lane));
  }

  Comparison compare_token(int64_t seen_token, int64_t token) const {
    Comparison sums;
    for (int64_t head = 0; head < heads_; ++head) add_row(seen_token, head, token, head, sums);
    return sums;
  }

  std::optional<std::string> explain_zeros() const {
    const auto is_zero = [](double value) { return value == 0; };
    if (!std::all_of(seen_.values.begin(), seen_.values.end(), is_zero)) return std::nullopt;
    return "every value is 0: was the output ever written?";
  }

  std::optional<std::string> explain_padding() const {
    const std::vector<bool> is_valid = valid_ids(slots_, side_);
    Comparison valid;
    int64_t wrong_rows = 0, padding_rows = 0;
    for (int64_t token = 0; token < tokens_; ++token) {
      const Comparison row = compare_token(token, token);
      if (is_valid[token]) {
        for (int64_t head = 0; head < heads_; ++head) add_row(token, head, token, head, valid);
        continue;
      }
      ++padding_rows;
      if (row.error2 > 0 || row.unequal_infinities > 0) ++wrong_rows;
    }
    if (wrong_rows == 0 || !valid.is_within(budget_)) return std::nullopt;
    return fmt::format(
        "the valid rows agree; {} of {} padding rows do not hold {}: they are undefined in some "
        "back ends, and --ignore-padding leaves them out",
        wrong_rows, padding_rows, name_ == "lse" ? "-inf" : "0");
  }

  std::optional<std::string> explain_infinities() const {
    if (name_ != "lse") return std::nullopt;
    Comparison rest;
    int64_t positive = 0;
    for (size_t i = 0; i < seen_.values.size(); ++i) {
      const bool is_swapped =
          std::isinf(exact_.values[i]) && std::isinf(seen_.values[i]) && seen_.values[i] > 0;
      positive += is_swapped ? 1 : 0;
      if (!is_swapped) rest.add(seen_.values[i], exact_.values[i]);
    }
    if (positive == 0 || !rest.is_within(budget_)) return std::nullopt;
    return fmt::format(
        "{} rows that see no key hold +inf where -inf is meant (FlashAttention-2 writes +inf)",
        positive);
  }

  std::optional<std::string> explain_factor() const {
    Comparison sums;
    for (size_t i = 0; i < seen_.values.size(); ++i) sums.add(seen_.values[i], exact_.values[i]);
    if (sums.unequal_infinities > 0 || !(sums.exact2 > 0) || !(sums.seen2 > 0)) return std::nullopt;
    const double factor = sums.product / sums.exact2;
    // |seen - factor*exact|2, compared with the allowed error of factor*exact.
    double rest2 = 0;
    for (size_t i = 0; i < seen_.values.size(); ++i) {
      if (std::isfinite(exact_.values[i]))
        rest2 += std::pow(seen_.values[i] - factor * exact_.values[i], 2);
    }
    if (!(rest2 <= budget_ * budget_ * factor * factor * sums.exact2)) return std::nullopt;
    if (std::abs(factor - 1) <= 2 * budget_) return std::nullopt;
    if (name_ == "lse" && std::abs(factor - kLog2E) < 1e-3)
      return "every value is 1.4427 (log2 e) times what it should be: a logarithm to base 2, and "
             "lse is the natural one";
    return fmt::format("every value is {:.{}g} times what it should be", factor,
                       budget_ > 1e-5 ? 3 : 6);
  }

  /// True if the rows agree when row ids[i] of one order is compared with row i of the other.
  bool agrees_in_order(const std::vector<int64_t>& ids, bool seen_is_by_rank) const {
    Comparison sums;
    for (int64_t row = 0; row < tokens_; ++row) {
      const int64_t from = seen_is_by_rank ? row : ids[row], to = seen_is_by_rank ? ids[row] : row;
      for (int64_t head = 0; head < heads_; ++head) add_row(from, head, to, head, sums);
      if (sums.unequal_infinities > 0) return false;
    }
    return sums.is_within(budget_);
  }

  std::optional<std::string> explain_order() const {
    const std::vector<int64_t> ids = rank_order_ids(runs_.values());
    if (agrees_in_order(ids, true))
      return "all rows agree when they are read in rank order: --order rank";
    if (agrees_in_order(ids, false))
      return "all rows agree when they are read in packed order: --order packed";
    return std::nullopt;
  }

  std::optional<std::string> explain_heads() const {
    constexpr int64_t kMostHeads = 256;
    if (heads_ < 2 || heads_ > kMostHeads) return std::nullopt;
    std::vector<std::string> moves;
    for (int64_t head = 0; head < heads_; ++head) {
      if (head_agrees(head, head)) continue;
      int64_t other = 0;
      while (other < heads_ && (other == head || !head_agrees(head, other))) ++other;
      if (other == heads_) return std::nullopt;
      moves.push_back(fmt::format("{} holds head {}'s", head, other));
    }
    if (moves.empty()) return std::nullopt;
    return describe_moves("head", moves);
  }

  bool head_agrees(int64_t seen_head, int64_t head) const {
    Comparison sums;
    for (int64_t token = 0; token < tokens_; ++token) {
      add_row(token, seen_head, token, head, sums);
      if (sums.unequal_infinities > 0) return false;
      // Most pairs of heads differ in the first tokens.
      if (token % 64 == 63 && sums.error2 > sums.exact2) return false;
    }
    return sums.is_within(2 * budget_);
  }

  std::optional<std::string> explain_ranks() const {
    constexpr size_t kMostRanks = 64;
    if (runs_.size() < 2 || runs_.size() > kMostRanks) return std::nullopt;
    std::vector<std::vector<int64_t>> ids;
    for (const auto& runs : runs_) ids.push_back(expand(runs));
    std::vector<std::string> moves;
    for (size_t rank = 0; rank < ids.size(); ++rank) {
      if (rank_agrees(ids[rank], ids[rank])) continue;
      size_t other = 0;
      while (other < ids.size() && (other == rank || !rank_agrees(ids[rank], ids[other]))) ++other;
      if (other == ids.size()) return std::nullopt;
      moves.push_back(fmt::format("{} holds rank {}'s rows", rank, other));
    }
    if (moves.empty()) return std::nullopt;
    return describe_moves("rank", moves);
  }

  bool rank_agrees(const std::vector<int64_t>& seen_ids, const std::vector<int64_t>& ids) const {
    if (seen_ids.size() != ids.size() || ids.empty()) return seen_ids.size() == ids.size();
    Comparison sums;
    for (size_t i = 0; i < ids.size(); ++i) {
      for (int64_t head = 0; head < heads_; ++head) add_row(seen_ids[i], head, ids[i], head, sums);
      if (sums.unequal_infinities > 0) return false;
      if (i % 64 == 63 && sums.error2 > sums.exact2) return false;
    }
    return sums.is_within(2 * budget_);
  }

  static std::string describe_moves(const char* noun, const std::vector<std::string>& moves) {
    constexpr size_t kShown = 4;
    const size_t shown = std::min(kShown, moves.size());
    return fmt::format(
        "{} {}{}", noun,
        fmt::join(moves.begin(), moves.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
        moves.size() > shown ? fmt::format(", and so on ({} in all)", moves.size())
                             : std::string());
  }

  const std::string name_;
  const double budget_;
  const Tensor& seen_;
  const Tensor& exact_;
  const int64_t tokens_, heads_, lanes_;
  const Side side_;
  const BatchSlots& slots_;
  const IdVector<RankId, std::vector<TokenRun>>& runs_;
};

}  // namespace

std::vector<std::string> explain_grade(const Plan& plan, const Answer& seen, const Answer& exact,
                                       const Grade& grade) {
  std::vector<std::string> hints;
  for (const TensorGrade& tensor : grade.tensors) {
    if (tensor.passed) continue;
    for (const auto member : {&Answer::out, &Answer::lse, &Answer::dq, &Answer::dk, &Answer::dv}) {
      if ((exact.*member).name != tensor.name) continue;
      if (auto hint = Explainer(plan, tensor, seen.*member, exact.*member).explain())
        hints.push_back(std::move(*hint));
    }
  }
  return hints;
}

}  // namespace cpscope
