#pragma once

#include "sim/base/result.h"

#include <string>
#include <string_view>

namespace cpscope {

/// Adds a place of the scenario file to every complaint that has none: the value of the first of
/// its keys that the file gives ("batch.lengths[1]" is an entry of a list), else the table of its
/// first key, else the beginning of the file. A scenario stores no places itself, so the text is
/// parsed again. Errors that are not about a scenario (unavailable, bad_input) and scenarios
/// without a text, made in memory, are returned unchanged.
Error locate_keys(Error error, std::string_view text, const std::string& path);

}  // namespace cpscope
