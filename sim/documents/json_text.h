#pragma once

#include "sim/plan/check/plan_check.h"
#include "sim/plan/plan_summary.h"
#include "sim/run/grade/grade.h"

#include <nlohmann/json.hpp>

namespace cpscope {

using Json = nlohmann::ordered_json;

/// The document as one line. Bytes that are no UTF-8 (a file's name may hold any) become U+FFFD.
std::string print_json(const Json& json);

/// A number, or null where JSON has no word for it (infinity, NaN).
Json finite_or_null(double value);

/// The documents of the contract, section 3.
Json layout_json(const Plan& plan, bool full);
Json summary_json(const CheckedPlan& checked, const PlanSummary& summary);
Json grade_json(const Grade& grade, const std::string& executor, uint64_t plan_hash);

/// Writes the whole plan item by item, so that a plan of a million items needs no second copy in
/// memory.
/// {"schema", "passed", "plan_hash", "items", "checks"} and, of a plan that is wrong, "broken": the
/// check, its words and, where one item breaks it, pass, step, rank, kind and item.
Json check_json(const Plan& plan, const std::vector<CheckResult>& checks);

void write_plan_json(const CheckedPlan& checked, const PlanSummary& summary, std::ostream& out);

}  // namespace cpscope
