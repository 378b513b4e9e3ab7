#pragma once

#include "gui/app/app_state.h"
#include "sim/run/toolbox.h"

#include <deque>
#include <string>

namespace cpscope::gui {

/// Gives the state the services of the program: executors, records, and the shipped scenarios of
/// the folder scenarios/ below CPSCOPE_ROOT or below the folder that the program was started in.
/// The toolbox must outlive the state.
void plug_in(AppState& state, Toolbox& toolbox);

/// Opens a scenario, a record together with its scenario, or the JSON of a screenshot. An error
/// becomes a message.
bool open_path(AppState& state, const std::string& path);

/// Opens the files that were dropped on the window, one after the other: a record is read in the
/// background, and the files after it wait. A record becomes run A; the next one of the same
/// scenario run B. Call it once a frame.
void open_dropped(AppState& state, std::deque<std::string>& paths);

}  // namespace cpscope::gui
