#pragma once

#include <string>

namespace cpscope {

/// Folder of the shipped scenarios: scenarios/ below the environment's CPSCOPE_ROOT (the launcher
/// sets it), else below the current folder when the program started.
std::string shipped_scenarios();

/// Folder of the shipped cluster files, where load_cluster looks for names: clusters/ below that.
std::string shipped_clusters();

}  // namespace cpscope
