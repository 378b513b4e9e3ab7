#include "sim/app/junit.h"

#include <cstdio>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

namespace cpscope {
namespace {

std::string escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        // XML 1.0 knows no control characters but these three.
        out +=
            static_cast<unsigned char>(c) < 0x20 && c != '\t' && c != '\n' && c != '\r' ? '?' : c;
    }
  }
  return out;
}

std::string test_case(const VerifyRow& row) {
  const double seconds =
      row.outcome.plan_seconds + row.outcome.run_seconds + row.outcome.judge_seconds;
  std::string text = fmt::format("  <testcase classname=\"{}\" name=\"{}\" time=\"{:.3f}\">",
                                 escape(row.outcome.executor), escape(row.path), seconds);
  const std::string reason = escape(row.outcome.reason);
  switch (row.outcome.status) {
    case CaseStatus::pass:
      break;
    case CaseStatus::fail:
      text += "<failure message=\"" + reason + "\"/>";
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

Result<std::string> write_text_file(const std::string& text, const std::string& path) {
  const std::string temporary = path + ".part";
  {
    std::ofstream file(temporary, std::ios::binary);
    file << text;
    file.flush();
    if (!file) {
      std::remove(temporary.c_str());
      return make_error(ErrorKind::bad_input, "the file cannot be written: " + path,
                        "name a place that can be written");
    }
  }
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (error) {
    std::remove(temporary.c_str());
    return make_error(ErrorKind::bad_input, "the file cannot be written: " + path, error.message());
  }
  return path;
}

Result<std::string> write_junit(const std::vector<VerifyRow>& rows, const std::string& path) {
  int failures = 0, errors = 0, skipped = 0;
  std::string cases;
  for (const VerifyRow& row : rows) {
    failures += row.outcome.status == CaseStatus::fail;
    errors += row.outcome.status == CaseStatus::error;
    skipped +=
        row.outcome.status == CaseStatus::skipped || row.outcome.status == CaseStatus::refused;
    cases += test_case(row);
  }
  return write_text_file(fmt::format("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite "
                                     "name=\"cpscope verify\" tests=\"{}\" failures=\"{}\" "
                                     "errors=\"{}\" skipped=\"{}\">\n{}</testsuite>\n",
                                     rows.size(), failures, errors, skipped, cases),
                         path);
}

}  // namespace cpscope
