#pragma once

#include "gui/app/app_state.h"

#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

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

/// A state with a scenario of the folder open; menus list a few of its names.
inline std::unique_ptr<gui::AppState> open_example_of(const std::string& folder,
                                                      const std::string& name) {
  auto state = std::make_unique<gui::AppState>();
  state->services.scenario_source = read_scenarios_of(folder);
  state->services.scenario_names = {"zigzag", "contiguous_idle", "striped", "thd_padding_p2p"};
  EXPECT_TRUE(open_shipped(*state, name));
  settle(*state);
  return state;
}

}  // namespace cpscope::tests
