#include "sim/app/commands.h"
#include "sim/app/junit.h"
#include "sim/app/report_file.h"

#include <filesystem>
#include <iostream>

namespace cpscope {

std::optional<Error> check_outlets(const CommandOptions& options) {
  if (!options.report_path.empty()) {
    if (auto error = check_report_path(options.report_path)) return error;
  }
  const std::filesystem::path folder = std::filesystem::path(options.junit_path).parent_path();
  std::error_code ignored;
  if (folder.empty() || std::filesystem::is_directory(folder, ignored)) return std::nullopt;
  return make_error(ErrorKind::bad_input, "--junit: the folder is not there: " + options.junit_path,
                    "make it first");
}

std::optional<Error> write_outlets(const Findings& findings, const CommandOptions& options,
                                   const Toolbox& toolbox) {
  if (!toolbox.is_first_process) return std::nullopt;
  if (!options.junit_path.empty()) {
    const Result<size_t> written = write_junit(findings, options.junit_path);
    if (!written) return written.error();
  }
  if (options.report_path.empty()) return std::nullopt;
  const Result<std::string> written = write_report(findings, options.draw, options.report_path);
  if (!written) return written.error();
  if (!options.json) std::cout << written.value() << '\n';
  return std::nullopt;
}

}  // namespace cpscope
