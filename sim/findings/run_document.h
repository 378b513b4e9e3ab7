#pragma once

#include "sim/documents/json_text.h"
#include "sim/findings/findings.h"

#include <ostream>

namespace cpscope {

/// Adds what is known beside the grade of a case that failed: first_wrong (pass, step, rank, kind,
/// item, tiles, token, head, both values) or not_located, and worst_rows; and the probes that were
/// asked.
void add_findings(const CaseFindings& findings, Json& json);

/// How long the parts of a run took.
struct RunSeconds {
  double plan = 0.0, run = 0.0, judge = 0.0;
};

/// The document of `run --json`, and its text.
Json run_json(const CaseFindings& findings, const RunSeconds& seconds);
void write_run_text(const CaseFindings& findings, const RunSeconds& seconds, std::ostream& out);

}  // namespace cpscope
