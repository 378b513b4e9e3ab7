#pragma once

#include "sim/scenario/scenario_file.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope {

/// Tokens of each sequence.
using Lengths = std::vector<int64_t>;

/// The parts of a small valid file, to be replaced one at a time.
struct ScenarioText {
  std::string top = "schema = 1\n";
  std::string attention = "heads = 8\nhead_dim = 64\n";
  std::string batch = "lengths = [10, 20]\n";
  std::string parallel = "cp_size = 4\n";
  std::string numerics;

  std::string join() const {
    return top + "[attention]\n" + attention + "[batch]\n" + batch + "[parallel]\n" + parallel +
           "[numerics]\n" + numerics;
  }
};

inline Result<LoadedScenario> parse(const ScenarioText& text) {
  return parse_scenario(text.join(), "lesson.toml");
}

/// The scenario, or a default one after a test failure that shows the error.
inline Scenario parse_valid(const ScenarioText& text) {
  const Result<LoadedScenario> loaded = parse(text);
  if (!loaded) {
    ADD_FAILURE() << to_text(loaded.error()) << "\nin\n" << text.join();
    return {};
  }
  return loaded.value().scenario;
}

/// The error's text, or a failure if the text is accepted.
inline std::string parse_invalid(const ScenarioText& text, ErrorKind kind = ErrorKind::bad_input) {
  const Result<LoadedScenario> loaded = parse(text);
  if (loaded) {
    ADD_FAILURE() << "accepted:\n" << text.join();
    return "";
  }
  EXPECT_EQ(loaded.error().kind, kind) << to_text(loaded.error());
  return to_text(loaded.error());
}

/// True for "path:line:column" with numbers from 1 up.
inline bool is_place(const std::string& where) {
  const size_t column = where.rfind(':');
  const size_t line = column == std::string::npos ? column : where.rfind(':', column - 1);
  if (line == std::string::npos || line == 0) return false;
  const auto is_number = [](std::string_view digits) {
    return !digits.empty() && digits.front() != '0' &&
           digits.find_first_not_of("0123456789") == std::string_view::npos;
  };
  const std::string_view text = where;
  return is_number(text.substr(line + 1, column - line - 1)) && is_number(text.substr(column + 1));
}

inline void expect_contains(const std::string& text, std::string_view part) {
  EXPECT_NE(text.find(part), std::string::npos) << "missing: " << part << "\nin: " << text;
}

}  // namespace cpscope
