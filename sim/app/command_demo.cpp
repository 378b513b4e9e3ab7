#include "sim/app/commands.h"
#include "sim/app/demo_report.h"
#include "sim/app/junit.h"

#include <cstdlib>
#include <filesystem>
#include <iostream>

#include <fmt/format.h>

namespace cpscope {
namespace {

namespace fs = std::filesystem;

/// The folder that holds scenarios/: the launcher says where, else here.
fs::path root_folder() {
  const char* root = std::getenv("CPSCOPE_ROOT");
  return root != nullptr && *root != '\0' ? fs::path(root) : fs::current_path();
}

}  // namespace

int command_demo(const CommandOptions& options, Toolbox& toolbox) {
  const fs::path root = root_folder();
  const fs::path out = options.out_folder.empty() ? root / "out" : fs::path(options.out_folder);
  const Result<std::vector<std::string>> files = find_scenarios({(root / "scenarios").string()});
  if (!files) return report(files.error());

  std::error_code error;
  fs::create_directories(out, error);
  if (error)
    return report(make_error(ErrorKind::bad_input,
                             "the report folder cannot be made: " + out.string(), error.message()));
  std::cout << "cpscope plans, proves, executes and judges every shipped scenario\n\n"
            << table_header() << '\n';
  std::vector<VerifyRow> rows;
  for (const std::string& file : files.value()) {
    for (const auto& executor : toolbox.executors) {
      if (executor->absence()) continue;
      rows.push_back(verify_file(toolbox, file, {executor->name(), true, options.max_flops, true}));
      std::cout << table_line(rows.back()) << std::endl;
    }
  }
  const Result<std::string> page =
      write_text_file(demo_report(rows), (out / "report.html").string());
  if (!page) return report(page.error());
  const Result<std::string> junit = write_junit(rows, (out / "report.xml").string());
  if (!junit) return report(junit.error());
  const int code = exit_code_of(rows);
  std::cout << fmt::format(
      "\n{}; report: {}\n",
      code == 0 ? "all passed, or say why they were not executed" : "not everything passed",
      page.value());
  return code;
}

}  // namespace cpscope
