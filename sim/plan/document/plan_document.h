#pragma once

#include "sim/base/result.h"
#include "sim/plan/plan.h"

#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

/// Number of the format; PLAN.md explains it field by field.
inline constexpr int64_t kPlanSchema = 1;
/// What "kind" of a plan document says.
inline constexpr std::string_view kPlanKind = "cpscope.plan";
/// A longer document is rejected before it is read.
inline constexpr int64_t kMaxPlanDocumentBytes = int64_t{8} << 30;

/// Writes the plan as one JSON document, from which read_plan_document makes the same plan, item
/// for item. Fields that have the value which they have when they are left out are left out.
void write_plan_document(const Plan& plan, std::ostream& out);

/// A plan as somebody wrote it. Its ids name what is there, and what the document leaves out is
/// filled in; whether it is right, check_plan says.
struct PlanDocument {
  Plan plan;
  std::vector<std::string> warnings;  // one sentence each, for stderr
};

/// Reads a plan document. `path` names it in errors. Errors (bad_input): "path:line:column: what"
/// if the JSON is broken, and with a JSON pointer ("/forward/transfers/12/to: what") if its content
/// is wrong. Memory is bounded by a small multiple of the text, and by the slices that the limits
/// allow.
Result<PlanDocument> read_plan_document(std::string_view text, const std::string& path);

/// The same for a file.
Result<PlanDocument> load_plan_document(const std::string& path);

/// True if the file begins like a JSON object, as no scenario file does. False too if it cannot be
/// read.
bool is_plan_document(const std::string& path);

}  // namespace cpscope
