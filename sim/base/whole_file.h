#pragma once

#include "sim/base/result.h"

#include <cstddef>
#include <functional>
#include <iosfwd>
#include <string>

namespace cpscope {

/// Writes `bytes` under a temporary name in the folder of `path` and renames the file, so that no
/// reader ever sees half a file. An exception or a signal that ends the process leaves no partial
/// file. A link keeps its target, even if the target does not exist yet; only regular files are
/// replaced. Returns the number of bytes. Errors (bad_input, where = path) name the reason; `noun`
/// names what could not be written: "the picture".
Result<size_t> write_whole_file(const std::string& path, const std::string& bytes,
                                const std::string& noun);

/// The same for content that need not be in memory at once.
Result<size_t> write_whole_file(const std::string& path,
                                const std::function<void(std::ostream&)>& write,
                                const std::string& noun);

/// For a process that ends immediately: removes the file that is being written, if there is one.
/// Allocates no memory.
void remove_unfinished_file();

}  // namespace cpscope
