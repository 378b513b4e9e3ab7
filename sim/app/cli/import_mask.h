#pragma once

#include <string>

namespace cpscope {

/// `cpscope import --mask`: prints the [attention] lines of a scenario with the mask of a file
/// (sim/scenario/mask_file.h), or its slices as JSON. Returns the exit code.
int import_mask(const std::string& path, bool as_json);

}  // namespace cpscope
