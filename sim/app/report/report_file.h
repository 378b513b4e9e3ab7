#pragma once

#include "sim/app/report/report_document.h"
#include "sim/base/result.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cpscope {

/// Can a report go there? The name ends in .html or .md, the folder is there, and nothing but a
/// file has this name. Asked before anything is run; the error is bad_input.
std::optional<Error> check_report_path(const std::string& path);

/// One HTML page (and well-formed XML): no scripts, nothing loaded, light or dark as the reader's
/// system has it.
std::string print_html(const ReportDocument& document);

/// The same as Markdown, and the pictures that it refers to by `folder`: name and content.
struct MarkdownReport {
  std::string text;
  std::vector<std::pair<std::string, std::string>> files;
};
MarkdownReport print_markdown(const ReportDocument& document, const std::string& folder);

/// Writes the report: HTML or Markdown by the ending of `path`; the pictures of Markdown to the
/// folder NAME_files beside it. Gives a sentence that says what was written.
Result<std::string> write_report(const Findings& findings, const FigureMaker& draw,
                                 const std::string& path);

}  // namespace cpscope
