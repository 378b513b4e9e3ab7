#pragma once

#include "sim/clock/forecast.h"

#include <iosfwd>
#include <string>

namespace cpscope {

/// What `forecast` says: the distribution over the windows, the table of replicas, and what the
/// loss comes from.
void write_forecast_text(const Forecast& forecast, std::ostream& out);

/// The document of `forecast --json`, with every window, and a row a window for a spreadsheet.
std::string forecast_json(const Forecast& forecast);
std::string forecast_csv(const Forecast& forecast);

}  // namespace cpscope
