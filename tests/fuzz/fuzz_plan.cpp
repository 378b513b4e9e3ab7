#include "tests/fuzz/fuzz_plan.h"

#include "sim/plan/check/plan_check.h"
#include "sim/plan/document/plan_document.h"
#include "sim/plan/planner/planner.h"
#include "sim/scenario/scenario_names.h"

#include <algorithm>
#include <sstream>

#include <nlohmann/json.hpp>

namespace cpscope::fuzzing {

std::optional<std::string> check_plan_bytes(std::string_view bytes) {
  const std::string path = "fuzz.json";
  const Result<PlanDocument> document = read_plan_document(bytes, path);
  if (!document) {
    for (const Complaint& complaint : document.error().complaints)
      if (complaint.what.empty()) return "a complaint that says nothing";
    return std::nullopt;
  }
  // The other reader also wants texts in UTF-8.
  const bool is_ascii = std::all_of(bytes.begin(), bytes.end(), [](char c) { return c >= 0; });
  if (is_ascii && !nlohmann::json::accept(bytes)) return "what was read is no JSON";
  const Plan& plan = document.value().plan;
  const std::vector<CheckResult> checks = inspect_plan(plan);
  for (const CheckResult& check : checks) {
    if (check.detail.empty()) return "a check that says nothing";
    if (!check.ok) return std::nullopt;
  }
  std::ostringstream written;
  write_plan_document(plan, written);
  const Result<PlanDocument> again = read_plan_document(written.str(), path);
  if (!again) return "a written plan is refused: " + to_text(again.error());
  if (again.value().plan.hash != plan.hash) return "a written plan is another";
  return std::nullopt;
}

std::vector<std::string> plan_seeds(const std::string&) {
  std::vector<std::string> seeds;
  for (const CommType comm : kCommTypes) {
    Scenario scenario;
    scenario.attention.heads = scenario.attention.kv_heads = 2;
    scenario.attention.head_dim_qk = scenario.attention.head_dim_v = 4;
    scenario.batch.lengths = scenario.batch.slots = {5, 3};
    scenario.batch.kv_lengths = scenario.batch.kv_slots = {5, 3};
    scenario.parallel.cp_size = 2;
    scenario.parallel.comm_type = comm;
    const Result<Plan> plan = make_plan(scenario);
    if (!plan) continue;
    std::ostringstream text;
    write_plan_document(plan.value(), text);
    seeds.push_back(text.str());
  }
  return seeds;
}

}  // namespace cpscope::fuzzing
