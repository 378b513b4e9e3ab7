#pragma once

#include "gui/app/app_state.h"

#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

namespace cpscope::tests {

/// The bytes of a file; empty when it cannot be read.
inline std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Reads the scenarios of a folder by name, like the window reads the shipped ones.
inline gui::ScenarioSource read_scenarios_of(const std::string& folder) {
  return [folder](std::string_view name) -> std::optional<std::string> {
    std::ifstream file(folder + "/" + std::string(name) + ".toml");
    if (!file) return std::nullopt;
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  };
}

}  // namespace cpscope::tests
