#pragma once

#include "sim/documents/json_text.h"
#include "sim/findings/findings.h"

namespace cpscope {

/// Adds what is known beside the grade of a case that failed: first_wrong (pass, step, rank, kind,
/// item, tiles, token, head, both values) or not_located, and worst_rows; and the probes that were
/// asked.
void add_findings(const CaseFindings& findings, Json& json);

}  // namespace cpscope
