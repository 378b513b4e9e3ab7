#pragma once

#include "sim/base/result.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

/// Reads document lengths: integers of at least 0, one per line or separated by commas; "#" starts
/// a comment, the first line may be a header. Errors have where = "path:line:column".
Result<std::vector<int64_t>> parse_length_file(std::string_view text, const std::string& path);

/// Reads the file, at most 64 MiB, and parses it. Errors of a file that cannot be read have no
/// `where`.
Result<std::vector<int64_t>> load_length_file(const std::string& path);

}  // namespace cpscope
