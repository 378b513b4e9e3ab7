#include "sim/scenario/scenario_folder.h"

#include <cstdlib>
#include <filesystem>

namespace cpscope {
namespace {

namespace fs = std::filesystem;

constexpr const char* kClusters = "scenarios/clusters";

/// Folders that may hold scenarios/, likeliest first. A CPSCOPE_ROOT is the only one.
std::vector<fs::path> list_roots() {
  const char* root = std::getenv("CPSCOPE_ROOT");
  if (root != nullptr && *root != '\0') return {root};
  std::vector<fs::path> roots = {fs::current_path()};
  std::error_code failed;
  const fs::path program = fs::read_symlink("/proc/self/exe", failed);
  // The build makes ROOT/build/bin/cpscope.
  if (!failed) roots.push_back(program.parent_path().parent_path().parent_path());
  return roots;
}

/// The first root that has the folder, else the first one.
fs::path find_root(const fs::path& folder) {
  const std::vector<fs::path> roots = list_roots();
  std::error_code failed;
  for (const fs::path& root : roots) {
    if (fs::is_directory(root / folder, failed)) return root;
  }
  return roots.front();
}

}  // namespace

std::string shipped_scenarios() { return (find_root("scenarios") / "scenarios").string(); }

std::string shipped_clusters() { return (find_root(kClusters) / kClusters).string(); }

std::vector<std::string> list_cluster_folders() {
  std::vector<std::string> folders;
  for (const fs::path& root : list_roots()) folders.push_back((root / kClusters).string());
  return folders;
}

}  // namespace cpscope
