#include "gui/app/inspect_sheet.h"
#include "gui/model/axis.h"
#include "gui/model/error_field.h"
#include "gui/model/pyramid.h"

#include <algorithm>
#include <cmath>
#include <string>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

const ErrorField* find_field(const RunView& run, int32_t tensor) {
  const std::string_view name = kErrorTensors[static_cast<size_t>(tensor)];
  for (const ErrorField& field : run.errors) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

/// The error of a row and its budget.
std::string describe_error(const ErrorField& field, const RowTarget& row) {
  const auto at = static_cast<size_t>(row.token * field.heads + row.head);
  const double error = field.row_errors[at];
  if (std::isnan(error)) return "NaN in the row: over any budget";
  if (error == static_cast<double>(MaxPyramid::kNothing))
    return "not compared: only a sample of the rows was judged";
  const double share = field.share_of(row.token, row.head);
  if (field.has_row_budgets())
    return fmt::format("error {:.3g} of {:.3g} allowed, {} of the budget{}", error,
                       field.row_budgets[at], print_share(share),
                       field.is_over(share) ? ": over it" : "");
  return fmt::format("error {:.3g}, {:.3g} of a typical row (length {:.3g}); rows have no budget",
                     error, share, field.typical_row);
}

/// True if the run has only times: nothing was computed.
bool is_predicted(const RunView& run) { return run.is_simulated && run.errors.empty(); }

}  // namespace

void add_errors(Sheet& sheet, const RowTarget& row) {
  const bool has_run = std::any_of(sheet.runs().begin(), sheet.runs().end(),
                                   [](const RunView* run) { return !is_predicted(*run); });
  if (!has_run) {
    sheet.add("Error",
              "Nothing has run yet: press R to run on cpu and compare with the "
              "oracle");
    return;
  }
  for (const RunView* run : sheet.runs()) {
    if (is_predicted(*run)) continue;
    const ErrorField* field = find_field(*run, row.tensor);
    if (field == nullptr || row.token >= field->tokens || row.head >= field->heads) {
      sheet.add(run->name, "this run has no such tensor");
      continue;
    }
    sheet.add(run->name, describe_error(*field, row));
    if (!run->against.empty()) sheet.add("Compared with", run->against);
    const auto worst =
        std::find_if(field->worst.begin(), field->worst.end(),
                     [&](const WorstRow& w) { return w.token == row.token && w.head == row.head; });
    if (worst != field->worst.end())
      sheet.add(
          "Largest element error",
          fmt::format("element {}: seen {:.9g}, expected {:.9g}; number {} of the worst rows",
                      worst->lane, worst->seen, worst->expected, worst - field->worst.begin() + 1));
    else
      sheet.add("Largest element error",
                fmt::format("values are kept for the {} worst rows, and this is "
                            "none of them",
                            field->worst.size()));
  }
}

}  // namespace cpscope::gui
