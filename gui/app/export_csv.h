#pragma once

#include "gui/app/app_state.h"
#include "gui/app/document/background.h"
#include "gui/model/view.h"
#include "sim/base/result.h"

#include <optional>
#include <ostream>
#include <string>

namespace cpscope::gui {

/// Writes the figures behind a view as comma-separated values, RFC 4180 with "\n", the same bytes
/// on every machine: one line of column names with units, then
///   layout:   a line for each run of tokens of each rank, queries and then keys;
///   mask:     a line for each slice of each compute item, forward and then backward;
///   traffic:  a line for each transfer in plan order, including those that stay on their rank;
///   timeline: a line for each item in plan order, with its times where a run has a clock;
///   numbers:  a line for each of the worst rows and for the worst row of each block of kCsvBlock
///             tokens and head, of every tensor of both runs;
///   balance:  a line for each rank.
/// Steps count from 1 in each pass, as on screen; everything else from 0; ends are exclusive.
/// Fields that do not apply are empty. Runs may be null. Writes directly to the stream: a plan of a
/// million items needs no second copy in memory. `control` (may be null) receives the progress and
/// can stop the export, which then omits the rest.
void write_csv(ViewKind kind, const PlanIndex& plan, const RunView* run_a, const RunView* run_b,
               std::ostream& out, TaskControl* control = nullptr);

/// Tokens of one block in the table of the numbers view.
inline constexpr int64_t kCsvBlock = 256;

/// The data of an export. The exporter keeps it alive while the window may already show other data.
struct CsvSource {
  SharedPlan plan;         // may be null
  SharedRun run_a, run_b;  // of this plan; may be null
};
/// The plan and the runs that are shown now.
CsvSource csv_source(const AppState& state);

/// Writes the table to a file, completely or not at all. Errors: no plan, no such folder, stopped.
std::optional<Error> save_csv(ViewKind kind, const CsvSource& source, const std::string& path,
                              TaskControl& control);
/// Writes the table in the background, for the plan and the runs that are shown (AppState::saving).
void start_saving_csv(AppState& state, ViewKind kind, const std::string& path);

}  // namespace cpscope::gui
