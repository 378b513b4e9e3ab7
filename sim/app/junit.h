#pragma once

#include "sim/app/commands.h"

#include <string>
#include <vector>

namespace cpscope {

/// Writes the rows of a verification as JUnit XML, whole or not at all. Returns the path.
Result<std::string> write_junit(const std::vector<VerifyRow>& rows, const std::string& path);

/// Writes a text file through a temporary name beside it, so that no half-written file is left.
Result<std::string> write_text_file(const std::string& text, const std::string& path);

}  // namespace cpscope
