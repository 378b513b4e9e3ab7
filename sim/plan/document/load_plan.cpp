#include "sim/plan/document/load_plan.h"

#include "sim/plan/check/plan_check.h"
#include "sim/plan/document/plan_document.h"

#include <memory>

namespace cpscope {
namespace {

Result<LoadedScenario> prove(Result<PlanDocument> document, const std::string& path) {
  if (!document) return document.error();
  Result<CheckedPlan> checked = check_plan(std::move(document.value().plan));
  if (!checked) {
    Error error = checked.error();
    for (Complaint& complaint : error.complaints) complaint.where = path;
    return error;
  }
  LoadedScenario loaded;
  loaded.scenario = checked.value().plan().scenario;
  loaded.text = print_scenario(loaded.scenario);
  loaded.path = path;
  loaded.warnings = std::move(document.value().warnings);
  loaded.plan = std::make_shared<const CheckedPlan>(std::move(checked).value());
  return loaded;
}

}  // namespace

Result<LoadedScenario> load_scenario_or_plan(const std::string& path) {
  if (!is_plan_document(path)) return load_scenario(path);
  return prove(load_plan_document(path), path);
}

Result<LoadedScenario> prove_plan_document(std::string_view text, const std::string& path) {
  return prove(read_plan_document(text, path), path);
}

}  // namespace cpscope
