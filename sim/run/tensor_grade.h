#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

/// Where a tensor is furthest from the oracle.
struct WorstPlace {
  int32_t rank = 0;   // owner of the token
  int32_t step = 0;   // last step of the schedule: a final answer is what all steps made of it
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
  double excess_of_rows = 0.0;  // its rows' errors, each over what it is expected to err, over what
                                // they may be together; fails above 1
  bool passed = true;
};

/// What the queries of one rank give to dk or dv of another's keys, found in a tensor's errors.
struct ShareError {
  int32_t query_rank = 0;
  int32_t key_rank = 0;
  double times = 0.0;  // -1: it is missing, 1: it is there twice
};

/// The ways in which rows are put together between a whole tensor and a single row.
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
  int64_t judged_rows = 0;  // compared with the oracle; all others were looked through
  bool rows_passed = true;  // no single row is further off than the plain run's errors explain
  bool groups_passed = true;
  double max_abs = 0.0;
  double rel_l2 = 0.0;
  double worst_row_rel_l2 = 0.0;
  double worst_row_excess = 0.0;  // the worst row's error over what a row may err; fails above 1
  double budget = 0.0;      // for rel_l2: twice the error of the plain run, a few roundings of
                            // the accumulator, and what chance may add while rows are few
  double budget_l2 = 0.0;   // the same as a length, |seen - exact|2 that is allowed; of a sample:
                            // scaled up to the whole tensor
  bool is_widened = false;  // the budget is the caller's, who asked for more than was earned
  int64_t nan = 0;
  int64_t infinite = 0;   // values that are infinite where the row must hold numbers
  int64_t not_empty = 0;  // rows of padding, or of nobody's, that are not 0 (lse: -inf)
  WorstPlace worst;
  std::vector<GroupGrade> groups[kGroupKinds];  // [GroupKind]; empty for tensors by head
  std::optional<ShareError> share;              // looked for by search_shares
  std::vector<float> row_budgets;  // [row] |seen - exact|2 that a row may err; empty unless asked

  /// What was judged is wrong, or what was only looked through cannot be right.
  bool has_failed() const { return !passed && (judged || nan + infinite + not_empty > 0); }
  const std::vector<GroupGrade>& groups_by(GroupKind kind) const {
    return groups[static_cast<int>(kind)];
  }
};

/// The group that is furthest over its budget: "head 3 is 1.4 times as far off as it may be"; empty
/// when all keep theirs.
std::string describe_worst_group(const TensorGrade& tensor);

}  // namespace cpscope
