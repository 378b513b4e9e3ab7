#include "sim/app/cli/commands.h"
#include "sim/app/fuzz/power.h"
#include "sim/base/whole_file.h"
#include "sim/documents/json_text.h"
#include "sim/findings/progress_bar.h"

#include <cmath>
#include <iostream>
#include <memory>
#include <sstream>

#include <fmt/format.h>

namespace cpscope {
namespace {

struct PowerArguments {
  std::string markdown_path;
  bool json = false, brief = false;
};

std::string judged_by(int64_t sample_rows) {
  return sample_rows == 0 ? "whole" : fmt::format("{} rows", sample_rows);
}

std::string print_share(double share) {
  return std::isfinite(share) ? fmt::format("{:.3g} %", 100 * share) : "more than 100 %";
}

Json power_json(const PowerReport& report) {
  Json json{{"schema", 1}};
  json["smallest"] = Json::array();
  for (const PowerFigure& figure : report.figures)
    json["smallest"].push_back({{"part", to_name(figure.part)},
                                {"parts", figure.parts},
                                {"dtype", figure.dtype},
                                {"cp_comm_type", figure.comm_type},
                                {"tokens", figure.tokens},
                                {"cp_size", figure.ranks},
                                {"tensor", figure.tensor},
                                {"sample", figure.sample_rows},
                                {"error", finite_or_null(figure.smallest)}});
  json["lost_messages"] = Json::array();
  for (const LostMessages& loss : report.losses)
    json["lost_messages"].push_back({{"cp_comm_type", loss.comm_type},
                                     {"dtype", loss.dtype},
                                     {"cp_size", loss.ranks},
                                     {"pass", to_name(loss.direction)},
                                     {"sample", loss.sample_rows},
                                     {"planted", loss.planted},
                                     {"caught", loss.seen}});
  return json;
}

/// Markdown, as the manual shows it.
void write_power_text(const PowerReport& report, std::ostream& out) {
  out << "| one of | dtype | tokens | ranks | judged | out | dq | dk | dv |\n"
         "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
  for (size_t i = 0; i + 3 < report.figures.size(); i += 4) {
    const PowerFigure& first = report.figures[i];
    out << fmt::format("| {} {}s | {} | {} | {} | {} |", first.parts, to_name(first.part),
                       first.dtype, first.tokens, first.ranks, judged_by(first.sample_rows));
    for (size_t t = i; t < i + 4; ++t)
      out << fmt::format(" {} |", print_share(report.figures[t].smallest));
    out << '\n';
  }
  out << "\n| lost message | dtype | ranks | judged | forward | backward |\n"
         "| --- | --- | --- | --- | --- | --- |\n";
  for (size_t i = 0; i + 1 < report.losses.size(); i += 2) {
    const LostMessages &forward = report.losses[i], &backward = report.losses[i + 1];
    out << fmt::format("| {} | {} | {} | {} | {} of {} | {} of {} |\n", forward.comm_type,
                       forward.dtype, forward.ranks, judged_by(forward.sample_rows), forward.seen,
                       forward.planted, backward.seen, backward.planted);
  }
}

int command_power(const PowerArguments& options, const Tools& tools) {
  const auto measure = [&] {
    ProgressBar bar(true);
    return measure_power(tools.toolbox, options.brief, bar.phase("power"));
  };
  const Result<PowerReport> power = measure();
  if (!power) return report(power.error());
  if (!options.markdown_path.empty()) {
    std::ostringstream table;
    write_power_text(power.value(), table);
    const Result<size_t> written =
        write_whole_file(options.markdown_path, table.str(), "the table");
    if (!written) return report(written.error());
  }
  if (options.json)
    std::cout << print_json(power_json(power.value())) << '\n';
  else
    write_power_text(power.value(), std::cout);
  return 0;
}

}  // namespace

Command add_power(CLI::App& app, const Tools& tools) {
  const auto options = std::make_shared<PowerArguments>();
  CLI::App* power = app.add_subcommand(
      "power",
      "how small an error the verdict sees: right answers with one row, head, rank or sequence a "
      "little off, and with one message lost, judged whole and by a sample");
  power->add_flag("--brief", options->brief, "bf16 and the largest size of each kind alone");
  power->add_option("--markdown", options->markdown_path, "also write the tables to this file")
      ->check(kNotEmpty);
  add_json(power, options->json);
  power->footer("Example: cpscope power --brief");
  return {power, [options, tools] { return command_power(*options, tools); }};
}

}  // namespace cpscope
