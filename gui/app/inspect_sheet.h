#pragma once

#include "gui/app/caption/caption_writer.h"
#include "gui/app/inspect.h"
#include "gui/model/neighbours.h"

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace cpscope::gui {

/// The runs that are shown for a plan, A before B.
using ShownRuns = std::vector<const RunView*>;

/// Builds an inspection, row by row.
class Sheet {
 public:
  Sheet(const PlanIndex& plan, ShownRuns runs, std::string heading)
      : index_(plan), runs_(std::move(runs)) {
    inspection_.heading = std::move(heading);
  }

  const PlanIndex& index() const { return index_; }
  const Plan& plan() const { return index_.plan(); }
  const ShownRuns& runs() const { return runs_; }

  /// A line that can contain links to parts of the plan.
  CaptionWriter line() const { return CaptionWriter(index_); }
  void add(std::string label, CaptionWriter& value);
  void add(std::string label, std::string value);
  /// Number of rows that may still be added.
  size_t room() const { return Inspection::kMostRows - inspection_.rows.size(); }
  Inspection take() { return std::move(inspection_); }

 private:
  const PlanIndex& index_;
  ShownRuns runs_;
  Inspection inspection_;
};

/// Adds the first items as links, each with its step, then how many more.
void add_items(Sheet& sheet, std::string label, std::span<const ItemId> items,
               bool has_more = false);
/// Adds runs of ids with their count, and their owners if they are wanted.
void add_ids(Sheet& sheet, std::string label, std::span<const TokenRun> runs, Side side,
             bool names_owners);

/// Adds rows with the start and duration of an item in each run.
void add_times(Sheet& sheet, const std::function<bool(const ItemEvent&)>& is_of, int64_t bytes);

/// Adds rows with the value of a tensor row in each run, and its error.
void add_errors(Sheet& sheet, const RowTarget& row);

// One sheet for each kind of target.
Inspection inspect_tokens(Sheet sheet, const TokenRange& tokens);
Inspection inspect_pairs(Sheet sheet, const PairRange& pairs);
Inspection inspect_rank(Sheet sheet, int32_t rank);
Inspection inspect_link(Sheet sheet, const LinkTarget& link);
Inspection inspect_item(Sheet sheet, const ItemId& item);
Inspection inspect_step(Sheet sheet, int32_t step);
Inspection inspect_row(Sheet sheet, const RowTarget& row);

}  // namespace cpscope::gui
