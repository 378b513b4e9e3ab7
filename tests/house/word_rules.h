#pragma once

#include "tests/house/tree_rules.h"

#include <string>
#include <vector>

namespace cpscope::house {

/// Words that the project had for what the field has words for, or that say less than a plain one:
/// in messages (string literals with a blank in them, in sim, reference, kernels and gui) and in
/// Markdown pages outside of code. One line per finding: "path:line: word: use ...".
std::vector<std::string> find_banned_words(const std::vector<SourceFile>& files);

}  // namespace cpscope::house
