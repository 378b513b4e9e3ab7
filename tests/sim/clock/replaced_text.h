#pragma once

#include <string>

#include <gtest/gtest.h>

namespace cpscope {

/// The text with the first `from` replaced; fails the test if there is none.
inline std::string replace_part(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

}  // namespace cpscope
