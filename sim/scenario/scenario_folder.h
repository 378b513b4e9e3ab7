#pragma once

#include <string>
#include <vector>

namespace cpscope {

/// Folder of the shipped scenarios: scenarios/ below the environment's CPSCOPE_ROOT (the launcher
/// sets it). Without it, below the current folder when the program started, or, if there is none,
/// below the folder that the program was built in.
std::string shipped_scenarios();

/// Folder of the shipped cluster files, where load_cluster looks for names: scenarios/clusters/,
/// found likewise.
std::string shipped_clusters();

/// Every folder in which shipped_clusters looks, likeliest first.
std::vector<std::string> list_cluster_folders();

}  // namespace cpscope
