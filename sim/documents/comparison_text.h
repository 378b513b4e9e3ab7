#pragma once

#include "sim/clock/candidates.h"
#include "sim/clock/crossover.h"

#include <iosfwd>
#include <string>

namespace cpscope {

/// The table of `compare`, fastest first, the refused ones with their reasons, then the sentence
/// that recommends. Unless it is to be full: the fastest, the first of each communication type, the
/// Pareto front and the scenario's own.
void write_comparison_text(const Candidates& comparison, bool is_full, std::ostream& out);

/// A line for each number of queries, and the number from which on sending keys is faster.
void write_crossover_text(const Crossover& crossover, std::ostream& out);

/// The document of `compare --json`; with the crossover if there is one.
std::string comparison_json(const Candidates& comparison, const Crossover* crossover = nullptr);

}  // namespace cpscope
