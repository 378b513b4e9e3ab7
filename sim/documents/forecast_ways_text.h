#pragma once

#include "sim/clock/forecast_ways.h"

#include <iosfwd>
#include <string>

namespace cpscope {

/// What `forecast --ways` says: for each distribution of lengths a table of ways, and which is
/// chosen and why.
void write_ways_text(const WaysForecast& forecast, std::ostream& out);

/// The document of `forecast --ways --json`.
std::string ways_json(const WaysForecast& forecast);

/// A row a way, a column a distribution: the mean time of a window in ms, and in brackets the share
/// of it that groups wait for the slowest one. Then a sentence for each distribution.
std::string ways_markdown(const WaysForecast& forecast);

}  // namespace cpscope
