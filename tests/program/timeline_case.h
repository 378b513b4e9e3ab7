#pragma once

#include "tests/program/program_run.h"

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace cpscope::tests {

using Json = nlohmann::json;

/// A pass, a kind of communication, and what makes it special: lines of [parallel].
std::vector<std::string> timeline_parallels();

/// Writes a small scenario in bf16, of which clusters know the times; returns its path.
std::string bf16_scenario(const std::string& parallel);

/// `timeline` on a shipped cluster, in the folder of this process.
ProgramRun run_timeline(const std::string& scenario, const std::string& options,
                        const std::string& cluster = "h200_ib");

}  // namespace cpscope::tests
