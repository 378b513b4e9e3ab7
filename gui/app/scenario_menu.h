#pragma once

#include "gui/app/app_state.h"

#include <string>
#include <string_view>
#include <vector>

namespace cpscope::gui {

/// The shipped scenarios of one idea.
struct ScenarioGroup {
  struct Entry {
    std::string name, title, question;
  };
  std::string_view title;  // "Balance"
  std::vector<Entry> entries;
};

/// All names of Services::scenario_names in teaching order (scenarios/README.md); names that no
/// group knows come last. Reads every scenario, so it is not for every frame.
std::vector<ScenarioGroup> group_scenarios(const Services& services);

/// The value of a key of a scenario's first table, in quotation marks: "title" or "question"; empty
/// when it is not there.
std::string read_heading(std::string_view text, std::string_view key);

}  // namespace cpscope::gui
