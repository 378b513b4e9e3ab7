#pragma once

#include <string>

namespace cpscope {

/// Project version, as written into records.
std::string program_version();

}  // namespace cpscope
