#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

/// The place of a tensor with the largest error; in padding only if no valid row is wrong.
struct WorstPlace {
  int32_t rank = 0;   // owner of the row
  int64_t token = 0;  // packed padded id; 0 for tensors by head
  int32_t head = 0;
  double expected = 0.0;
  double seen = 0.0;
};

/// How the rows of one head, rank or sequence compare with the oracle.
struct GroupGrade {
  int64_t index = 0;
  double rel_l2 = 0.0;
  double budget = 0.0;
  double excess_of_rows = 0.0;  // its rows' errors, each relative to its expected error, over the
                                // allowed sum; fails above 1
  bool passed = true;
};

/// The contribution of one rank's queries to dk or dv of another rank's keys, found in a tensor's
/// errors.
struct ShareError {
  int32_t query_rank = 0;
  int32_t key_rank = 0;
  double times = 0.0;  // -1: it is missing, 1: it is added twice
};

/// Groups of rows between a whole tensor and a single row.
enum class GroupKind { head, rank, sequence };
inline constexpr int kGroupKinds = 3;
std::string_view to_name(GroupKind value);

/// How one tensor compares with the oracle. Errors are |seen - exact|2 over |exact|2, for the
/// tensor, for its heads, ranks and sequences, and for its worst row.
struct TensorGrade {
  std::string name;
  bool passed = true;
  bool judged = true;  // false: no row was compared, `why_not` says why; never passed
  std::string why_not = {};
  int64_t rows = 0;         // of the tensor: tokens (1 for tensors by head) times heads
  int64_t judged_rows = 0;  // compared with the oracle; all others were only scanned
  bool rows_passed = true;  // no row has a larger error than the plain run's errors explain
  bool groups_passed = true;
  double max_abs = 0.0;
  double rel_l2 = 0.0;
  double worst_row_rel_l2 = 0.0;  // over the length of the row, or of its terms where they cancel
  double worst_row_excess = 0.0;  // the worst row's error over its allowed one; fails above 1
  double budget = 0.0;     // for rel_l2: twice the error of the plain run, a few roundings of
                           // the accumulator, and a random allowance if rows are few
  double budget_l2 = 0.0;  // the same as a length, allowed |seen - exact|2; of a sample:
                           // scaled up to the whole tensor
  /// dtype fp8: |exact of the quantised inputs - exact| over |exact|, the error of the format, and
  /// |seen - exact of the quantised inputs| over the latter, that of the implementation.
  struct Parted {
    double format = 0.0, implementation = 0.0;
    bool knows_scales = true;  // false: the inputs may have been quantised with other scales
    bool is_judged = false;    // rel_l2 is the implementation's: the tensor has no other error
  };
  std::optional<Parted> parted = std::nullopt;
  bool is_widened = false;  // the caller's budget is used, which is wider than the earned one
  // The budget is as long as the tensor and its terms: zeros would be within it.
  bool allows_zeros = false;
  int64_t nan = 0;
  int64_t infinite = 0;   // values that are infinite where the row must hold numbers
  int64_t not_empty = 0;  // rows that must be empty and are not 0 (lse: -inf)
  WorstPlace worst;
  std::vector<GroupGrade> groups[kGroupKinds];  // [GroupKind]; empty for tensors by head
  std::optional<ShareError> share;              // looked for by search_shares
  std::vector<float> row_budgets;  // [row] allowed |seen - exact|2; empty unless requested

  /// True if judged rows are wrong, or if scanned rows cannot be right.
  bool has_failed() const { return !passed && (judged || nan + infinite + not_empty > 0); }
  const std::vector<GroupGrade>& groups_by(GroupKind kind) const {
    return groups[static_cast<int>(kind)];
  }
};

/// The group that exceeds its budget most: "the error of head 3 is 1.4 times its budget"; empty if
/// all are within theirs.
std::string describe_worst_group(const TensorGrade& tensor);

}  // namespace cpscope
