#include "sim/app/report/report_file.h"

#include "sim/base/markup.h"
#include "sim/base/whole_file.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include <fmt/format.h>

namespace cpscope {
namespace {

std::string ending_of(const std::string& path) {
  std::string ending = std::filesystem::path(path).extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  return ending;
}

bool is_markdown(const std::string& path) { return ending_of(path) == ".md"; }

/// A text between fences that it does not hold itself.
std::string fence(const std::string& text, const std::string& language) {
  size_t longest = 2, run = 0;
  for (const char c : text) {
    run = c == '`' ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  const std::string ticks(longest + 1, '`');
  return fmt::format("{}{}\n{}{}{}\n\n", ticks, language, text,
                     text.empty() || text.back() != '\n' ? "\n" : "", ticks);
}

struct MarkdownPrinter {
  const std::string& folder;
  MarkdownReport report;
  size_t figures = 0;

  void operator()(const ReportHeading& block) {
    if (!block.anchor.empty()) report.text += fmt::format("<a id=\"{}\"></a>\n\n", block.anchor);
    report.text += fmt::format("{} {}\n\n", std::string(static_cast<size_t>(block.level), '#'),
                               escape_markdown(block.text));
  }
  void operator()(const ReportVerdict& block) {
    report.text += fmt::format("> **{}** {}\n\n", block.status, escape_markdown(block.text));
  }
  void operator()(const ReportParagraph& block) {
    report.text += escape_markdown(block.text) + "\n\n";
  }
  void operator()(const ReportTable& block) {
    report.text += "|";
    for (const std::string& column : block.columns)
      report.text += " " + escape_markdown(column) + " |";
    report.text += "\n|";
    for (size_t i = 0; i < block.columns.size(); ++i) {
      const bool is_number = !block.rows.empty() && block.rows.front()[i].is_number;
      report.text += is_number ? " ---: |" : " --- |";
    }
    report.text += "\n";
    for (const auto& row : block.rows) {
      report.text += "|";
      for (const ReportCell& cell : row) {
        std::string text = escape_markdown(cell.text);
        if (!cell.status.empty()) text = "**" + text + "**";
        if (!cell.link.empty()) text = fmt::format("[{}](#{})", text, cell.link);
        report.text += " " + text + " |";
      }
      report.text += "\n";
    }
    report.text += "\n";
  }
  void operator()(const ReportList& block) {
    for (const ReportItem& item : block.items) {
      report.text += "- ";
      if (!item.status.empty()) report.text += "**" + item.status + "** ";
      report.text += escape_markdown(item.text) + "\n";
    }
    report.text += "\n";
  }
  void operator()(const ReportCode& block) { report.text += fence(block.text, block.language); }
  void operator()(const Figure& block) {
    const std::string name = fmt::format("{}-{}.svg", ++figures, block.name);
    report.text += fmt::format("![{}]({})\n\n**{}.** {}\n\n", escape_markdown(block.title),
                               escape_address(folder + "/" + name), escape_markdown(block.title),
                               escape_markdown(block.caption));
    report.files.emplace_back(name, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n" + block.light);
  }
};

Result<std::string> write_markdown(const ReportDocument& document, const std::string& path) {
  const std::string folder = std::filesystem::path(path).stem().string() + "_files";
  const MarkdownReport report = print_markdown(document, folder);
  if (!report.files.empty()) {
    const std::filesystem::path place = std::filesystem::path(path).parent_path() / folder;
    std::error_code error;
    std::filesystem::create_directories(place, error);
    if (error)
      return make_error(ErrorKind::bad_input,
                        "the folder of pictures cannot be made: " + place.string(),
                        error.message());
    for (const auto& [name, content] : report.files) {
      const auto written = write_whole_file((place / name).string(), content, "the picture");
      if (!written) return written.error();
    }
  }
  const auto written = write_whole_file(path, report.text, "the report");
  if (!written) return written.error();
  if (report.files.empty()) return fmt::format("report: {}", path);
  return fmt::format("report: {}, with {} pictures in {}", path, report.files.size(), folder);
}

}  // namespace

MarkdownReport print_markdown(const ReportDocument& document, const std::string& folder) {
  MarkdownPrinter printer{folder, {}};
  for (const ReportBlock& block : document.blocks) std::visit(printer, block);
  if (!printer.report.files.empty())
    printer.report.text += fmt::format(
        "The pictures of this report are the files of the folder `{}`, which belongs "
        "to it.\n",
        folder);
  return std::move(printer.report);
}

std::optional<Error> check_report_path(const std::string& path) {
  const auto refuse = [&](const char* what, const char* hint) {
    return make_error(ErrorKind::bad_input, fmt::format("--report: {}: {}", what, path), hint);
  };
  if (ending_of(path) != ".html" && !is_markdown(path))
    return refuse("the name says no kind of report", "end it in .html or .md");
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder, error))
    return refuse("the folder is not there", "make it first");
  if (std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error))
    return refuse("something that is no file has this name", "name a file");
  const std::filesystem::path pictures =
      folder / (std::filesystem::path(path).stem().string() + "_files");
  if (is_markdown(path) && std::filesystem::exists(pictures, error) &&
      !std::filesystem::is_directory(pictures, error))
    return refuse("its folder of pictures has the name of something else",
                  "give the report another name");
  return std::nullopt;
}

Result<std::string> write_report(const Findings& findings, const FigureMaker& draw,
                                 const std::string& path) {
  if (auto error = check_report_path(path)) return *error;
  const ReportDocument document = make_report(findings, draw);
  if (is_markdown(path)) return write_markdown(document, path);
  const auto written = write_whole_file(path, print_html(document), "the report");
  if (!written) return written.error();
  return "report: " + path;
}

}  // namespace cpscope
