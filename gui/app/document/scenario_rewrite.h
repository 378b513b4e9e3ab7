#pragma once

#include "sim/scenario/scenario.h"

#include <string>

namespace cpscope::gui {

/// The text of a scenario after an edit: `text`, the text of `from`, with the keys that differ in
/// `to`. Comments, the order of keys and keys that say what is the default anyway stay. Falls back
/// to print_scenario(to) where that would not read back as `to`. `anchor` is the path against which
/// names of files are resolved.
std::string rewrite_scenario(const std::string& text, const Scenario& from, const Scenario& to,
                             const std::string& anchor);

}  // namespace cpscope::gui
