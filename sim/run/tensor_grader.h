#pragma once

// Private to the grade: one tensor of the three sides.

#include "sim/run/dtype.h"
#include "sim/run/tensor.h"
#include "sim/run/tensor_grade.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace cpscope {

/// Relative root mean square error of one rounding to nearest: half a unit in the last place,
/// uniformly distributed (1/sqrt(3)), over a significand between 1 and 2 (1/sqrt(2)).
double typical_rounding(Dtype dtype);

/// Length of a row, infinities and NaN left out.
double row_norm(const double* row, int64_t lanes);

/// What everybody agrees about the rows of a side: whose they are.
struct RowPlaces {
  std::vector<int64_t> tokens;     // [judged token] packed padded id
  std::vector<int32_t> ranks;      // [judged token] owner
  std::vector<int32_t> sequences;  // [judged token] -1 for padding
};

/// How far kernels of good faith are off that no plain run can be asked to show, beside chance: an
/// error of a row alone, and the root mean square over rows.
struct KnownError {
  double row = 0.0;
  double rms = 0.0;
};

/// One tensor of the three sides, [judged token, head, lane].
struct Compared {
  std::string name;
  const Tensor& seen;
  const Tensor& exact;
  const Tensor& plain;
  double magnitude;  // natural size of an element, for the absolute floor
  Dtype rounded_to;  // what the answer's values are rounded to
  // [row] Lengths of the terms that make it; empty: a row is as long as it is itself, and as a
  // typical row beside that, because scalars near zero have no size of their own.
  const std::vector<double>& terms;
  const RowPlaces* places = nullptr;  // null for tensors by head
  std::vector<double> carried = {};   // [row] expected error that roundings upstream carry in
  // Errors that are independent of each other, at most: rows may be many that share few of them.
  double sources = std::numeric_limits<double>::infinity();
  KnownError known = {};
  std::vector<bool> is_empty = {};  // [row] nothing may stand there, however little; or none
  double widened = 0.0;             // the caller's budget for rel_l2; 0: none
  double group_room = 1.0;          // what a head, rank or sequence may err of the whole's share
};

/// Weighs tensors against the oracle's.
class TensorGrader {
 public:
  struct Options {
    bool keeps_row_budgets = false;
    int32_t last_step = 0;
    int32_t ranks = 1;
    int64_t sequences = 0;
  };
  TensorGrader(Dtype dtype, const Options& options);

  /// A tensor passes when it has no NaN, is -inf exactly where the oracle is, keeps its budget as
  /// a whole, in every head, rank and sequence and in every row, and when its shape agrees.
  TensorGrade grade(const Compared& sides) const;

 private:
  struct Sums;
  struct Weighed;
  Weighed weigh(const Compared& sides) const;
  struct Group;
  double allow(const Compared& sides, const Sums& sums, double row_draws, double scale,
               double luck) const;
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
