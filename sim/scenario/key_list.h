#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

/// What a reader asked of a table: a key, the type of its value in words, and its choices if it has
/// any.
struct ReadKey {
  std::string table, key;  // "batch.generator", "tokens"; the top level is ""
  std::string type;        // "integer from 1 to 65536"
  std::vector<std::string> choices;
};

/// One key of a scenario file.
struct ScenarioKey {
  std::string table, key;
  std::string type;                  // of the value, as the parser reads it
  std::vector<std::string> choices;  // names that it may be; empty for other types
  std::string fallback;              // the value without the key, as TOML or in words; "required"
  std::string meaning;               // one clause
};

/// Every key that the parser knows, in the order of its tables. Types and choices are what it asked
/// its reader for while it parsed scenarios of all kinds.
std::vector<ScenarioKey> list_scenario_keys();

}  // namespace cpscope
