#pragma once

#include "sim/base/result.h"

#include <cstddef>
#include <string>

namespace cpscope::gui {

/// Writes `bytes` under a temporary name beside `path` and renames it, so that no reader ever sees
/// half a file. Gives the number of bytes. Errors (unavailable, where = path) name the reason;
/// `noun` says what could not be written: "the picture".
Result<size_t> write_whole_file(const std::string& path, const std::string& bytes,
                                const std::string& noun);

}  // namespace cpscope::gui
