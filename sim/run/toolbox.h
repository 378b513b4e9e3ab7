#pragma once

#include "sim/run/executor.h"
#include "sim/run/executor_fault.h"
#include "sim/run/judge.h"
#include "sim/run/plan_mistake.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace cpscope {

/// What main passes to the program: only main sees all libraries.
struct Toolbox {
  std::vector<std::unique_ptr<Executor>> executors;  // the first is the default
  std::vector<std::pair<std::string, std::string>>
      missing_executors;  // name, and why it is unavailable
  /// Makes an executor of a shared library (`plugin:PATH`); may be empty.
  std::function<Result<std::unique_ptr<Executor>>(const std::string& path)> open_plugin;
  Oracle oracle;
  WatchedWalker watched_walker;  // for the fault gallery and causes
  PlanMistakes plan_mistakes;    // for causes; may be empty
  bool is_first_process = true;  // the others neither print results nor write files
};

}  // namespace cpscope
