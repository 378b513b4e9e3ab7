#include "sim/plan/plan_check.h"

#include "sim/plan/check_rows.h"

namespace cpscope {

std::vector<CheckResult> inspect_plan(const Plan& plan) {
  std::vector<CheckResult> checks;
  checks.push_back(check_ownership(plan));
  checks.push_back(check_buffers(plan));
  // The later checks index by what the first two have proved.
  if (!checks[0].ok || !checks[1].ok) return checks;
  checks.push_back(check_coverage(plan));
  checks.push_back(check_movement(plan));
  checks.push_back(check_gradients(plan));
  checks.push_back(check_bytes(plan));
  return checks;
}

Result<CheckedPlan> check_plan(Plan plan) {
  CheckedPlan checked;
  checked.checks_ = inspect_plan(plan);
  for (const CheckResult& check : checked.checks_) {
    if (!check.ok)
      return make_error(ErrorKind::failed,
                        "the plan is wrong (" + check.name + "): " + check.detail);
  }
  checked.plan_ = std::make_shared<const Plan>(std::move(plan));
  return checked;
}

CheckedPlan admit_faulty_plan(Plan plan, std::string why) {
  CheckedPlan checked;
  checked.checks_ = inspect_plan(plan);
  checked.plan_ = std::make_shared<const Plan>(std::move(plan));
  checked.admitted_because_ = std::move(why);
  return checked;
}

}  // namespace cpscope
