#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace cpscope::tests {

/// Lines of a source file that hold `text`, counted from 1.
inline std::vector<int32_t> lines_with(const std::string& path, const std::string& text) {
  std::ifstream stream(path);
  std::vector<int32_t> lines;
  std::string line;
  for (int32_t number = 1; std::getline(stream, line); ++number) {
    if (line.find(text) != std::string::npos) lines.push_back(number);
  }
  return lines;
}

}  // namespace cpscope::tests
