#pragma once

#include "sim/documents/json_text.h"
#include "sim/plan/order/order_import.h"
#include "sim/run/grade/foreign_grade.h"
#include "sim/run/probe/probe.h"

#include <ostream>
#include <string>

namespace cpscope {

/// What is right and wrong with somebody else's tensors, for people and as the document of `grade
/// --json`.
void write_foreign_grade(const ForeignRecord& record, const ForeignGrade& graded, const Plan& plan,
                         std::ostream& out);
Json foreign_json(const ForeignRecord& record, const ForeignGrade& graded, const Plan& plan);

/// What a first line says beside the verdict: why it is blind, how many rows were judged, and which
/// tensors were not; empty, or goes on after a word.
std::string describe_unjudged(const ForeignGrade& graded);

/// Whose inputs the tensors were judged against.
std::string describe_inputs(const ForeignGrade& graded);

/// What probes have found, for people and as the document of `probe --json`.
void write_probe_text(const ProbeReport& report, const std::string& executor, std::ostream& out);
Json probe_json(const ProbeReport& report, const std::string& executor);

/// An imported order, as the document of `import --json`.
Json order_json(const OrderImport& order, OrderSource source);

}  // namespace cpscope
