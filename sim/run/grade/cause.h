#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cpscope {

/// A known mistake that explains wrong rows: recomputed with this mistake, they are what was seen,
/// within their budgets.
struct Cause {
  std::string name;                  // documents_ignored; sim/app/causes.md lists them
  std::string text;                  // what happened, as a clause: "every query sees all sequences"
  std::vector<std::string> tensors;  // whose wrong rows it explains
  int64_t rows = 0;                  // wrong rows of these tensors
  double explained = 0.0;            // share of those of them that were recomputed
  std::string layout = {};           // other_layout only: which one
};

/// "documents_ignored: every query sees all sequences (out, lse; explains 100 % of 96 wrong rows)".
std::string describe(const Cause& cause);

}  // namespace cpscope
