#include "sim/app/cli/commands.h"
#include "sim/app/cli/demo_report.h"
#include "sim/app/cli/verified_file.h"
#include "sim/app/report/junit.h"
#include "sim/base/whole_file.h"
#include "sim/scenario/scenario_folder.h"

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>

#include <fmt/format.h>

namespace cpscope {
namespace {

struct DemoArguments {
  std::string out_folder;  // empty: out/ beside scenarios/
  double max_flops = 2e12;
};

/// One picture of all views for every scenario that can be planned, by scenario file. What cannot
/// be drawn is left out; nothing of it makes the demo fail.
std::map<std::string, std::string> draw_pictures(const std::vector<std::string>& files,
                                                 const std::filesystem::path& out, Toolbox& toolbox,
                                                 const PictureCommands& pictures) {
  std::map<std::string, std::string> names;
  if (!pictures.render) return names;
  for (const std::string& file : files) {
    const std::string name =
        std::filesystem::path(file).stem().string() + (pictures.has_png ? ".png" : ".svg");
    RenderRequest request;
    request.scenario_path = file;
    request.view = "all";
    request.out_path = (out / name).string();
    request.theme = "light";
    request.is_quiet = true;
    if (pictures.render(request, toolbox) == 0) names[file] = name;
  }
  return names;
}

bool has_display() {
  for (const char* name : {"DISPLAY", "WAYLAND_DISPLAY"}) {
    const char* display = std::getenv(name);
    if (display != nullptr && *display != '\0') return true;
  }
  return false;
}

int command_demo(const DemoArguments& options, const Tools& tools) {
  const std::filesystem::path scenarios = shipped_scenarios();
  const std::filesystem::path out = options.out_folder.empty()
                                        ? scenarios.parent_path() / "out"
                                        : std::filesystem::path(options.out_folder);
  const Result<std::vector<std::string>> files = find_scenarios({scenarios.string()});
  if (!files) return report(files.error());

  std::error_code error;
  std::filesystem::create_directories(out, error);
  if (error)
    return report(make_error(ErrorKind::bad_input,
                             "the report folder cannot be made: " + out.string(), error.message()));
  std::cout << "cpscope plans, proves, executes and judges every shipped scenario\n\n"
            << table_header() << '\n';
  std::vector<VerifyRow> rows;
  Findings findings{.command = "verify", .date = today()};
  for (const std::string& file : files.value()) {
    for (const auto& executor : tools.toolbox.executors) {
      if (executor->absence()) continue;
      const CaseOptions case_options{
          .executor = executor->name(), .poison = true, .max_flops = options.max_flops};
      rows.push_back(verify_file(tools.toolbox, file, case_options));
      findings.cases.push_back(to_findings(rows.back(), case_options));
      std::cout << table_line(rows.back()) << std::endl;
    }
  }
  std::map<std::string, std::string> drawn;
  if (tools.toolbox.is_first_process)
    drawn = draw_pictures(files.value(), out, tools.toolbox, tools.pictures);
  const std::string page = (out / "report.html").string();
  // `cpscope web` writes the window as a page into the same folder.
  const bool has_window = std::filesystem::exists(out / "cpscope.html", error);
  const Result<size_t> written = write_whole_file(
      page, demo_report(rows, drawn, has_window ? "cpscope.html" : ""), "the report");
  if (!written) return report(written.error());
  const Result<size_t> junit = write_junit(findings, (out / "report.xml").string());
  if (!junit) return report(junit.error());
  const int code = exit_code_of(rows);
  std::cout << fmt::format(
      "\n{}; report: {}; {} pictures in the same folder\n",
      code == 0 ? "all passed, or say why they were not executed" : "not everything passed", page,
      drawn.size());
  std::cout.flush();
  if (tools.toolbox.is_first_process && has_display() && tools.pictures.open_window) {
    std::cerr << "cpscope: opening the window; close it to end\n";
    tools.pictures.open_window({}, tools.toolbox);
  }
  return code;
}

}  // namespace

Command add_demo(CLI::App& app, const Tools& tools) {
  const auto options = std::make_shared<DemoArguments>();
  CLI::App* demo = app.add_subcommand(
      "demo",
      "verifies the shipped scenarios on every executor here, writes a report with pictures, "
      "and opens the window if there is a display");
  demo->add_option("--out", options->out_folder,
                   "folder of the report (default: out, next to scenarios/)");
  demo->footer("Example: cpscope demo");
  return {demo, [options, tools] { return command_demo(*options, tools); }};
}

}  // namespace cpscope
