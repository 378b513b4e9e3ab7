#pragma once

#include "sim/run/executor.h"
#include "sim/run/executor_fault.h"
#include "sim/run/judge.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace cpscope {

/// What main plugs into the program: it alone sees every room.
struct Toolbox {
  std::vector<std::unique_ptr<Executor>> executors;  // the first is the default
  std::vector<std::pair<std::string, std::string>>
      missing_executors;  // name, and why it is not here
  /// Makes an executor of somebody's shared library (`plugin:PATH`); may be empty.
  std::function<Result<std::unique_ptr<Executor>>(const std::string& path)> open_plugin;
  Oracle oracle;
  WatchedWalker watched_walker;  // for the fault gallery
  bool is_first_process = true;  // the others neither print results nor write files
};

}  // namespace cpscope
