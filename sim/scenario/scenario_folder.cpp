#include "sim/scenario/scenario_folder.h"

#include "sim/scenario/text_file.h"

#include <cstdlib>
#include <filesystem>

namespace cpscope {

std::string shipped_scenarios() {
  namespace fs = std::filesystem;
  const char* root = std::getenv("CPSCOPE_ROOT");
  const fs::path folder = root != nullptr && *root != '\0' ? fs::path(root) : fs::current_path();
  return (folder / "scenarios").string();
}

std::string shipped_clusters() { return join_path(shipped_scenarios(), "clusters"); }

}  // namespace cpscope
