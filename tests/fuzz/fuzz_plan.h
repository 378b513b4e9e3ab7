#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope::fuzzing {

/// The target `plan`: a plan document. What the reader accepts is JSON to another reader too; it
/// can be proved or refuted; a plan that is proved, written and read again is the same.
std::optional<std::string> check_plan_bytes(std::string_view bytes);
std::vector<std::string> plan_seeds(const std::string& scenarios);

}  // namespace cpscope::fuzzing
