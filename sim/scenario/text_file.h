#pragma once

#include "sim/base/result.h"

#include <cstdint>
#include <string>

namespace cpscope {

/// The whole file, byte for byte. Errors (bad_input, where = path): no such file, a folder,
/// unreadable, more than `max_bytes` (a regular file is then not read at all).
Result<std::string> read_text_file(const std::string& path, int64_t max_bytes);

/// The same for a file that another file names: the error text contains the file name, and the
/// caller, who knows the line that names it, sets the place.
Result<std::string> read_named_file(const std::string& path, int64_t max_bytes);

/// Folder of the file `path`, "" when it names none.
std::string find_folder(const std::string& path);

/// `name` as seen from `folder`; an absolute name stays.
std::string join_path(const std::string& folder, const std::string& name);

}  // namespace cpscope
