#pragma once

// Private to the grade: compares one tensor of the answer with the exact and the plain one.

#include "sim/run/dtype.h"
#include "sim/run/fp8.h"
#include "sim/run/grade/tensor_grade.h"
#include "sim/run/tensor.h"

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace cpscope {

/// Relative root mean square error of one rounding to nearest: half a unit in the last place,
/// uniformly distributed (1/sqrt(3)), over a significand between 1 and 2 (1/sqrt(2)).
double typical_rounding(Dtype dtype);
double typical_rounding(Fp8Type type);

/// Length of a row, infinities and NaN excluded.
double row_norm(const double* row, int64_t lanes);

/// |left - right|2 of two rows; two NaN are equal, a distance that is undefined is infinite.
double row_distance(std::span<const double> left, std::span<const double> right);

/// Token, owner and sequence of the rows of one side.
struct RowPlaces {
  std::vector<int64_t> tokens;     // [judged token] packed padded id
  std::vector<int32_t> ranks;      // [judged token] owner
  std::vector<int32_t> sequences;  // [judged token] -1 for padding
  // [query head] Owner of all its rows; empty where a token's owner has all heads of it.
  std::vector<int32_t> head_ranks = {};

  int32_t rank_of(size_t place, int64_t head) const {
    return head_ranks.empty() ? ranks[place] : head_ranks[static_cast<size_t>(head)];
  }
};

/// Known error of correct kernels that no plain run shows, not counting random deviations: an error
/// of a single row, and the root mean square over rows.
struct KnownError {
  double row = 0.0;
  double rms = 0.0;
};

/// Error of kernels that compute exp2 by a cubic polynomial, as FlashAttention 4 does on Blackwell
/// (coefficients 1, 0.695146, 0.227564, 0.077119): largest relative error of a weight, and its root
/// mean square over the polynomial's range. A row with one key has the full error in its lse.
inline constexpr KnownError kCubicExp2 = {8.8e-5, 6.1e-5};

/// Error of logits whose products of 8 bits Hopper's tensor cores add up: of every sum of 32
/// products and the sum so far they keep about 14 bits of the largest, cut and not rounded
/// (DeepSeek-V3, arXiv:2412.19437, sec. 3.3.2). In units of a logit of random q and k: on an H100
/// with head_dim 128 the error of the largest logits was up to 5 * 2^-12, the root mean square over
/// rows 2^-14; on an H200, where logits spread over 11 and 34 and a row's lse is that of its
/// largest logits, 1.2 and 1.8 * 2^-12.
inline constexpr KnownError kShortSums = {12 * 0x1p-12, 0x1p-12};

/// One tensor: the answer's, the exact and the plain one, [judged token, head, element].
struct Compared {
  std::string name;
  const Tensor& seen;
  const Tensor& exact;
  const Tensor& plain;
  double magnitude;  // natural size of an element, for the absolute floor
  double rounding;   // typical_rounding of the answer's values
  // [row] Lengths of the terms of the row. Empty: the row's own length plus that of a typical row,
  // because scalars near zero have no size of their own.
  const std::vector<double>& terms;
  const RowPlaces* places = nullptr;  // null for tensors by head
  std::vector<double> carried = {};   // [row] expected error from earlier roundings
  // Upper bound of the number of independent errors: many rows may share few of them.
  double sources = std::numeric_limits<double>::infinity();
  KnownError known = {};
  std::vector<bool> is_empty = {};  // [row] must be exactly empty; may be empty itself
  double widened = 0.0;             // the caller's budget for rel_l2; 0: none
  double group_room = 1.0;          // factor on the budget of a head, rank or sequence
  double of_terms = 0.0;            // typical_rounding of each term, as P and dS of dtype fp8 have
};

/// Grades tensors against the oracle's.
class TensorGrader {
 public:
  struct Options {
    bool keeps_row_budgets = false;
    int32_t ranks = 1;
    int64_t sequences = 0;
  };
  TensorGrader(Dtype dtype, const Options& options);

  /// A tensor passes when it has no NaN, is -inf exactly where the oracle is, is within its budget
  /// as a whole, in every head, rank and sequence and in every row, and when its shape agrees.
  TensorGrade grade(const Compared& sides) const;

 private:
  struct Sums;
  struct Weighed;
  Weighed weigh(const Compared& sides) const;
  struct Group;
  /// How many independent errors there are.
  struct Draws {
    double in_row, distinct_rows;
  };
  double allow(const Compared& sides, const Sums& sums, const Draws& of, double scale,
               double luck) const;
  static double count_distinct_rows(const Compared& sides, const Weighed& weighed);
  static double count_row_draws(const Weighed& weighed);
  double excess_of_rows(const Compared& sides, const Group& group, const Weighed& weighed,
                        double scale) const;
  static double widen(const Compared& sides, const Sums& sums, double allowed);
  void grade_groups(const Compared& sides, const Weighed& weighed, GroupKind kind,
                    TensorGrade& grade) const;
  void grade_rows(const Compared& sides, const Weighed& weighed, TensorGrade& grade) const;

  const Options options_;
  const double floor_;
};

}  // namespace cpscope
