#pragma once

#include "gui/model/plan_index.h"
#include "gui/model/target.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope::gui {

/// One thing that a query may mean.
struct Found {
  std::string title;   // "Rank 3"
  std::string detail;  // one line with figures
  Target target;       // the plan has it
};

struct FindAnswer {
  std::vector<Found> found;  // best first, at most kMostFound
  std::string explanation;   // why nothing was found and what could be typed; else empty

  static constexpr size_t kMostFound = 12;
};

/// Finds what a query names in the plan:
///   token 123 · q 100-200 · k [0, 64) · q 0-64 k 0-64 · sequence 2 · sequence 2 position 5 ·
///   rank 3 · link 1 2 · 1 -> 2 · step 4 · backward step 4 · compute 12 · forward.compute.12 ·
///   out 17 2 · dk[token 17, head 2] · 123
/// Everything that name_target and print_item print is understood. Ranges are half-open. Words may
/// be shortened; numbers may be grouped ("131 072") or end in Ki or Mi. A plain number is a token,
/// a rank, a step or a sequence, whatever the plan has. Never fails: what cannot be read is
/// explained.
FindAnswer find_targets(const PlanIndex& plan, std::string_view query);

/// A name that a query of Ctrl+O fits.
struct NameMatch {
  size_t index = 0;  // in the names
  int32_t score = 0;
  std::vector<size_t> letters;  // positions in the name that the query hit, ascending
};

/// Names that hold the letters of every word of the query in their order, upper and lower case
/// alike; best first, then in the order of the names. An empty query fits all.
std::vector<NameMatch> match_names(std::span<const std::string> names, std::string_view query);

}  // namespace cpscope::gui
