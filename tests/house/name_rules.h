#pragma once

#include "tests/house/tree_rules.h"

#include <string>
#include <vector>

namespace cpscope::house {

/// A name that a file keeps to itself, in an anonymous namespace or as static, and its line,
/// from 1.
struct OwnName {
  std::string name;
  size_t line = 0;
};

/// The names of functions, types, aliases and variables that a C++ file keeps to itself, and of its
/// macros; tests that GoogleTest's macros declare are left out.
std::vector<OwnName> find_own_names(const SourceFile& file);

/// No two .cpp files of one folder keep the same name to themselves: the folder is compiled in
/// batches, where one would be taken for the other. One line per violation.
std::vector<std::string> find_shared_names(const std::vector<SourceFile>& files);

}  // namespace cpscope::house
