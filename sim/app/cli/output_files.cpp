#include "sim/app/cli/command.h"
#include "sim/app/report/junit.h"
#include "sim/app/report/report_file.h"

#include <filesystem>
#include <iostream>

namespace cpscope {

void add_output_files(CLI::App* app, OutputFiles& files) {
  app->add_option("--report", files.report,
                  "also write a report with pictures to this file: one page if it ends in .html, "
                  "Markdown with a folder of pictures next to it if it ends in .md")
      ->check(kNotEmpty);
  app->add_option("--junit", files.junit, "also write JUnit XML to this file")->check(kNotEmpty);
}

std::optional<Error> check_output_files(const OutputFiles& files) {
  if (!files.report.empty()) {
    if (auto error = check_report_path(files.report)) return error;
  }
  const std::filesystem::path folder = std::filesystem::path(files.junit).parent_path();
  std::error_code ignored;
  if (folder.empty() || std::filesystem::is_directory(folder, ignored)) return std::nullopt;
  return make_error(ErrorKind::bad_input, "--junit: the folder is not there: " + files.junit,
                    "make it first");
}

std::optional<Error> write_output_files(const Findings& findings, const OutputFiles& files,
                                        const Tools& tools, bool is_quiet) {
  if (!tools.toolbox.is_first_process) return std::nullopt;
  if (!files.junit.empty()) {
    const Result<size_t> written = write_junit(findings, files.junit);
    if (!written) return written.error();
  }
  if (files.report.empty()) return std::nullopt;
  const Result<std::string> written =
      write_report(findings, tools.pictures.draw_figures, files.report);
  if (!written) return written.error();
  if (!is_quiet) std::cout << written.value() << '\n';
  return std::nullopt;
}

}  // namespace cpscope
