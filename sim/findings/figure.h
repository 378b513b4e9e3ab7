#pragma once

#include "sim/findings/findings.h"

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace cpscope {

/// A picture of a report as SVG elements that can stand inside a page, the same in two themes.
struct Figure {
  std::string name;  // "mask": also of its file
  std::string title;
  std::string caption;      // sentences, their numbers from the plan
  std::string light, dark;  // dark: empty where the light one has to do
};

/// Which pictures are wanted of a case.
struct FigureRequest {
  const CaseFindings* findings = nullptr;
  std::string id;  // what ids inside the pictures begin with: no two may be the same on a page
  bool is_small = false;  // one small picture alone, of the mask, light: a page of many cases
};

/// Draws them. What cannot be drawn is left out, and `left_out` says why in one sentence.
using FigureMaker = std::function<std::vector<Figure>(const FigureRequest&, std::string& left_out)>;

}  // namespace cpscope
