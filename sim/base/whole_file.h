#pragma once

#include "sim/base/result.h"

#include <cstddef>
#include <functional>
#include <iosfwd>
#include <string>

namespace cpscope {

/// Writes `bytes` under a temporary name beside `path` and renames it, so that no reader ever sees
/// half a file, and neither an exception nor a signal that ends the process leaves one; a link
/// keeps pointing where it did, also where nothing is there yet, and nothing but a file is
/// replaced. Gives the number of bytes. Errors (bad_input, where = path) name the reason; `noun`
/// says what could not be written: "the picture".
Result<size_t> write_whole_file(const std::string& path, const std::string& bytes,
                                const std::string& noun);

/// The same for what need not be in memory at once.
Result<size_t> write_whole_file(const std::string& path,
                                const std::function<void(std::ostream&)>& write,
                                const std::string& noun);

/// For the last words of a process that ends at once: takes the file that is being written, if
/// there is one, with it. Asks for no memory.
void remove_unfinished_file();

}  // namespace cpscope
