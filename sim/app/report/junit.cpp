#include "sim/app/report/junit.h"

#include "sim/base/markup.h"
#include "sim/base/whole_file.h"

#include <fmt/format.h>

namespace cpscope {
namespace {

/// Everything that is wrong with a case, one line each.
std::string describe_failure(const CaseFindings& one) {
  std::string text;
  for (const JudgedQuantity& row : list_quantities(one)) {
    if (row.judgement != Judgement::fail) continue;
    text += fmt::format("{}: {}", row.name, row.note);
    if (!row.error.empty()) text += fmt::format("; error {}, budget {}", row.error, row.budget);
    if (!row.place.empty()) text += "; worst at " + row.place;
    if (!row.expected.empty())
      text += fmt::format(": expected {}, seen {}", row.expected, row.seen);
    text += '\n';
  }
  if (one.first) text += "first wrong at " + describe(*one.first) + '\n';
  if (!one.not_located.empty()) text += "first wrong place not known: " + one.not_located + '\n';
  if (!one.replay.empty()) text += "again: " + one.replay + '\n';
  return text;
}

std::string test_case(const CaseFindings& one) {
  std::string text = fmt::format("  <testcase classname=\"{}\" name=\"{}\" time=\"{:.3f}\">",
                                 escape_markup(one.executor), escape_markup(one.name), one.seconds);
  const std::string reason = escape_markup(one.reason);
  switch (one.status) {
    case CaseStatus::pass:
      break;
    case CaseStatus::fail:
      text += "<failure message=\"" + reason + "\">" + escape_markup(describe_failure(one)) +
              "</failure>";
      break;
    case CaseStatus::error:
      text += "<error message=\"" + reason + "\"/>";
      break;
    case CaseStatus::refused:
    case CaseStatus::skipped:
      text += "<skipped message=\"" + reason + "\"/>";
      break;
  }
  return text + "</testcase>\n";
}

}  // namespace

std::string print_junit(const Findings& findings) {
  std::string cases;
  for (const CaseFindings& one : findings.cases) cases += test_case(one);
  return fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"cpscope {}\" tests=\"{}\" "
      "failures=\"{}\" errors=\"{}\" skipped=\"{}\">\n{}</testsuite>\n",
      findings.command, findings.cases.size(), count_cases(findings, CaseStatus::fail),
      count_cases(findings, CaseStatus::error),
      count_cases(findings, CaseStatus::refused) + count_cases(findings, CaseStatus::skipped),
      cases);
}

Result<size_t> write_junit(const Findings& findings, const std::string& path) {
  return write_whole_file(path, print_junit(findings), "the JUnit file");
}

}  // namespace cpscope
