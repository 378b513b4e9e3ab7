#pragma once

#include "sim/clock/candidates.h"

#include <iosfwd>
#include <string>

namespace cpscope {

/// The table of `compare`, fastest first, the refused ones with their reasons, then the sentence
/// that recommends. Unless it is to be full: the fastest, the first of each communication type, the
/// Pareto front and the scenario's own.
void write_comparison_text(const Candidates& comparison, bool is_full, std::ostream& out);

/// The document of `compare --json`.
std::string comparison_json(const Candidates& comparison);

}  // namespace cpscope
