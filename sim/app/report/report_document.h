#pragma once

#include "sim/findings/figure.h"
#include "sim/findings/findings.h"

#include <string>
#include <variant>
#include <vector>

namespace cpscope {

// A report is a list of blocks. All texts are plain; whoever prints them escapes them.

struct ReportHeading {
  int level = 1;
  std::string text;
  std::string anchor;  // what links name; may be empty
};
/// The sentence that matters, coloured by status: pass | fail | error | refused | skipped | blind.
struct ReportVerdict {
  std::string status, text;
};
struct ReportParagraph {
  std::string text;
};
struct ReportCell {
  std::string text;
  std::string status;  // of a judgement, else empty
  std::string link;    // anchor inside the report, else empty
  bool is_number = false;
};
struct ReportTable {
  std::vector<std::string> columns;
  std::vector<std::vector<ReportCell>> rows;
};
struct ReportItem {
  std::string status, text;
};
struct ReportList {
  std::vector<ReportItem> items;
};
/// Text as it is: a command line, a scenario.
struct ReportCode {
  std::string text, language;
};
using ReportBlock = std::variant<ReportHeading, ReportVerdict, ReportParagraph, ReportTable,
                                 ReportList, ReportCode, Figure>;

struct ReportDocument {
  std::string title;
  std::vector<ReportBlock> blocks;
};

/// What a report may hold at most; the rest is said in a sentence.
struct ReportLimits {
  size_t sections = 20;  // of cases, failing ones first
  size_t index_rows = 400;
  size_t figure_bytes = 1'600'000;  // of all pictures together, both themes
  size_t scenario_bytes = 200'000;  // of the texts of all scenarios together
};

/// The whole report: a verdict, an index where there are several cases, and a section for each case
/// that failed (for every fault of the gallery; for the only case whatever became of it). `draw`
/// may be empty: a report without pictures.
ReportDocument make_report(const Findings& findings, const FigureMaker& draw,
                           const ReportLimits& limits = {});

}  // namespace cpscope
