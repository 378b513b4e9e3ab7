#pragma once

#include "gui/model/plan_index.h"
#include "gui/model/target.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope::gui {

/// One possible meaning of a query.
struct Found {
  std::string title;   // "Rank 3"
  std::string detail;  // one line with figures
  Target target;       // exists in the plan
};

struct FindAnswer {
  std::vector<Found> found;  // best first, at most kMostFound
  std::string explanation;   // why nothing was found and what to type; else empty

  static constexpr size_t kMostFound = 12;
};

/// Finds what a query names in the plan:
///   token 123 · q 100-200 · k [0, 64) · q 0-64 k 0-64 · sequence 2 · sequence 2 position 5 ·
///   rank 3 · link 1 2 · 1 -> 2 · step 4 · backward step 4 · compute 12 · forward.compute.12 ·
///   out 17 2 · dk[token 17, head 2] · 123
/// Accepts everything that name_target and print_item print. Ranges are half-open. Words may be
/// abbreviated; numbers may be grouped ("131 072") or end in Ki or Mi. A plain number is a token, a
/// rank, a step or a sequence, whatever the plan has. Never fails: for text that cannot be read,
/// the answer explains why.
FindAnswer find_targets(const PlanIndex& plan, std::string_view query);

/// A name that matches a query of Ctrl+O.
struct NameMatch {
  size_t index = 0;  // in the names
  int32_t score = 0;
  std::vector<size_t> letters;  // matched positions in the name, ascending
};

/// Names that contain the letters of every word of the query in the same order, ignoring case; best
/// first, then in the order of the names. An empty query matches all.
std::vector<NameMatch> match_names(std::span<const std::string> names, std::string_view query);

}  // namespace cpscope::gui
