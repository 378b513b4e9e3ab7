#pragma once

#include "sim/base/result.h"
#include "sim/plan/item_event.h"
#include "sim/plan/plan.h"

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

/// One property that was proved, or the first place where it fails.
struct CheckResult {
  std::string name;  // ownership | buffers | coverage | movement | partials | gradients | bytes
  bool ok = true;
  std::string detail;  // what was proved, or what is wrong: rank, step, item and both values
  std::optional<ItemId> item = std::nullopt;  // the first item that breaks it, where one does
};

/// A plan that an executor may run. Only check_plan makes one, and admit_faulty_plan for the fault
/// gallery.
class CheckedPlan {
 public:
  const Plan& plan() const { return *plan_; }
  const std::vector<CheckResult>& checks() const { return checks_; }
  /// Empty unless the plan was made by admit_faulty_plan.
  const std::string& admitted_because() const { return admitted_because_; }

 private:
  friend Result<CheckedPlan> check_plan(Plan plan);
  friend CheckedPlan admit_faulty_plan(Plan plan, std::string why);
  CheckedPlan() = default;

  std::shared_ptr<const Plan> plan_;
  std::vector<CheckResult> checks_;
  std::string admitted_because_;
};

/// Proves, in integers, before anything runs: every token has one owner; buffers are large enough;
/// every visible (query, key, head) is computed exactly once and no other; a sender holds what it
/// sends and a compute item holds what it reads; every partial result and every share of a gradient
/// reaches the owner of its rows exactly once; merges are ordered; bytes equal the closed form of
/// the schedule. A plan that fails is our bug and is returned as an error of kind failed.
Result<CheckedPlan> check_plan(Plan plan);

/// The same checks; returns all results instead of a checked plan.
std::vector<CheckResult> inspect_plan(const Plan& plan);

/// The only way to make a CheckedPlan of a plan that is wrong on purpose. `why` is recorded and
/// shown in every report.
CheckedPlan admit_faulty_plan(Plan plan, std::string why);

}  // namespace cpscope
