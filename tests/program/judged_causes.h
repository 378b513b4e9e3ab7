#pragma once

#include "sim/run/grade/grade.h"
#include "tests/program/planted_mistakes.h"

#include <ostream>
#include <string>

#include <gtest/gtest.h>

namespace cpscope::tests {

/// A planted answer and its grade, with the causes that were named.
struct JudgedCauses {
  Grade grade;

  /// The name of the first cause; "none".
  std::string first_cause() const;
  /// All causes and what else was said, a line each.
  std::string describe() const;
  /// True if at least this share of the rows of a failed tensor is wrong.
  bool changes_rows(double share) const;

  int64_t wrong_rows = 0, rows = 0;  // of the failed tensor with the largest share of wrong rows
};

JudgedCauses judge_planted(const PlantedMistake& mistake, const std::string& text);

/// A fault of the gallery, and the cause that is named where it is planted.
struct NamedCause {
  const char* fault;
  const char* cause;
};
/// Expects that the fault, planted in the scenario `text`, fails and that its cause is named first.
void expect_named(const NamedCause& expected, const std::string& text);

/// GoogleTest would list the bytes of the parameter, another name in every build.
inline void PrintTo(const PlantedMistake& mistake, std::ostream* out) { *out << mistake.name; }

/// Its name as GoogleTest takes it.
inline std::string name_of_mistake(const testing::TestParamInfo<PlantedMistake>& mistake) {
  std::string name = mistake.param.name;
  std::erase(name, '_');
  return name;
}

}  // namespace cpscope::tests
