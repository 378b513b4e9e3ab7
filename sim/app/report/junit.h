#pragma once

#include "sim/base/result.h"
#include "sim/findings/findings.h"

#include <cstddef>
#include <string>

namespace cpscope {

/// Findings as JUnit XML, one test case a case: what is refused or cannot be run here counts as
/// skipped. A failure says what was judged wrong and the first wrong place.
std::string print_junit(const Findings& findings);

/// Writes it, whole or not at all. Gives the number of bytes.
Result<size_t> write_junit(const Findings& findings, const std::string& path);

}  // namespace cpscope
