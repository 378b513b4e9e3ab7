#include "sim/documents/key_text.h"

#include "sim/scenario/key_list.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cpscope {
namespace {

/// The type of a value, or its choices.
std::string describe_values(const ScenarioKey& key) {
  return key.choices.empty() ? key.type : fmt::format("{}", fmt::join(key.choices, ", "));
}

/// The text in lines of at most 150 letters.
std::string wrap_lines(std::string text) {
  constexpr size_t kLongest = 150;
  for (size_t begin = 0; text.size() - begin > kLongest;) {
    const size_t blank = text.rfind(' ', begin + kLongest);
    if (blank == std::string::npos || blank <= begin) break;
    text[blank] = '\n';
    begin = blank + 1;
  }
  return text;
}

}  // namespace

Json keys_json() {
  Json json{{"schema", 1}};
  json["keys"] = Json::array();
  for (const ScenarioKey& key : list_scenario_keys())
    json["keys"].push_back({{"table", key.table},
                            {"key", key.key},
                            {"type", key.type},
                            {"choices", key.choices},
                            {"default", key.fallback},
                            {"meaning", key.meaning}});
  return json;
}

void write_keys_text(std::ostream& out) {
  std::string_view table = "none";
  for (const ScenarioKey& key : list_scenario_keys()) {
    if (key.table != table && !key.table.empty()) out << fmt::format("[{}]\n", key.table);
    table = key.table;
    out << fmt::format("  {:<17} {}; default {}\n  {:<17} {}\n", key.key, describe_values(key),
                       key.fallback, "", key.meaning);
  }
}

void write_keys_page(std::ostream& out) {
  out << "# Keys of a scenario file\n\n"
         "`./cpscope keys --markdown` prints this page. In Python the keys of all tables are "
         "keywords: "
         "`Scenario.of(heads=8, cp_size=4, ...)`.\n";
  std::string_view table = "none";
  for (const ScenarioKey& key : list_scenario_keys()) {
    if (key.table != table) {
      table = key.table;
      out << fmt::format("\n## {}\n",
                         table.empty() ? "Above the first table" : fmt::format("[{}]", table));
    }
    out << '\n'
        << wrap_lines(
               fmt::format("**{}** ({}; default: {})", key.key, describe_values(key), key.fallback))
        << "\\\n"
        << wrap_lines(key.meaning) << '\n';
  }
}

}  // namespace cpscope
