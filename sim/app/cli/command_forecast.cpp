#include "sim/app/cli/commands.h"
#include "sim/base/whole_file.h"
#include "sim/documents/forecast_text.h"
#include "sim/documents/forecast_ways_text.h"
#include "sim/findings/progress_bar.h"
#include "sim/scenario/scenario_folder.h"

#include <iostream>
#include <memory>
#include <ostream>
#include <string>

namespace cpscope {
namespace {

struct ForecastArguments {
  std::string scenario_path;
  ClusterChoice on;
  int64_t windows = 256;
  int64_t replicas = 0;  // 0: as many as usual and as fit
  int64_t microbatches = 1;
  std::optional<uint64_t> first_seed;  // nothing: the generator's
  std::string csv_path;
  bool has_ways = false, has_published = false;
  std::string markdown_path;  // of the ways
  bool json = false;
};

/// How a forecast is shown.
template <class Made>
struct ForecastForms {
  std::string table_path;  // empty: no table
  std::string (*table)(const Made&);
  std::string (*document)(const Made&);
  void (*write_text)(const Made&, std::ostream&);
};

/// Writes the table to its file, and the text or the document to the output.
template <class Made>
int show_forecast(const Result<Made>& made, const LoadedScenario& loaded, bool has_json,
                  const ForecastForms<Made>& forms) {
  if (!made) return report(made.error(), loaded);
  if (!forms.table_path.empty()) {
    const Result<size_t> written =
        write_whole_file(forms.table_path, forms.table(made.value()), "the table");
    if (!written) return report(written.error());
  }
  if (has_json)
    std::cout << forms.document(made.value()) << '\n';
  else
    forms.write_text(made.value(), std::cout);
  return 0;
}

int command_forecast(const ForecastArguments& options, const Tools&) {
  const Result<Cluster> cluster = load_cluster(options.on.cluster, shipped_clusters());
  if (!cluster) return report(cluster.error());
  const Result<LoadedScenario> loaded = load_scenario_alone(options.scenario_path, "forecast");
  if (!loaded) return report(loaded.error());
  const Scenario& scenario = loaded.value().scenario;
  ProgressBar bar(!options.json);
  const ForecastOptions wanted{.stack = options.on.stack,
                               .windows = options.windows,
                               .replicas = options.replicas,
                               .microbatches = options.microbatches,
                               .first_seed = options.first_seed,
                               .control = {bar.phase("windows")}};
  if (options.has_ways || options.has_published || !options.markdown_path.empty())
    return show_forecast(forecast_ways(scenario, cluster.value(), wanted, options.has_published),
                         loaded.value(), options.json,
                         {options.markdown_path, ways_markdown, ways_json, write_ways_text});
  return show_forecast(forecast_windows(scenario, cluster.value(), wanted), loaded.value(),
                       options.json,
                       {options.csv_path, forecast_csv, forecast_json, write_forecast_text});
}

}  // namespace

Command add_forecast(CLI::App& app, const Tools& tools) {
  const auto options = std::make_shared<ForecastArguments>();
  CLI::App* forecast = app.add_subcommand(
      "forecast",
      "step time over many packed windows, and what data-parallel replicas lose by waiting for "
      "the slowest of them, predicted");
  add_scenario_file(forecast, options->scenario_path);
  add_cluster(forecast, options->on);
  forecast
      ->add_option("--windows", options->windows,
                   "batches to draw: the scenario with generator seeds counted up (default 256)")
      ->check(whole_number(1, int64_t{1} << 20));
  forecast
      ->add_option("--replicas", options->replicas,
                   "data-parallel replicas, cp_size ranks each (default 64, or as many as the "
                   "cluster holds)")
      ->check(whole_number(1, kMaxDrawnWindows));
  forecast
      ->add_option("--microbatches", options->microbatches,
                   "windows that each replica works on before it waits (default 1: exact over the "
                   "windows drawn; more: resampled)")
      ->check(whole_number(1, kMaxDrawnWindows));
  forecast
      ->add_option("--seed", options->first_seed,
                   "generator seed of the first window (default: the scenario's)")
      ->check(whole_number());
  forecast->add_option("--csv", options->csv_path, "also write a row for each window to this file")
      ->check(kNotEmpty);
  CLI::Option* ways = forecast->add_flag(
      "--ways", options->has_ways,
      "compare CP sizes for the scenario's lengths: all ranks for each sequence, one size for all "
      "(fixed CP N), Megatron's hybrid, FlexSP, ByteScale, group_cast with lpt_local");
  CLI::Option* published = forecast->add_flag(
      "--published", options->has_published,
      "--ways for the published distributions of lengths: prolong, wlb, byted, wiki, magi");
  CLI::Option* markdown = forecast
                              ->add_option("--markdown", options->markdown_path,
                                           "also write the table of --ways to this file")
                              ->check(kNotEmpty);
  for (CLI::Option* const option : {ways, published, markdown})
    option->excludes(forecast->get_option("--csv"));
  add_json(forecast, options->json);
  forecast->footer(
      "The batch must come from a generator that draws. Exit code 2 also when the cluster has\n"
      "fewer GPUs than cp_size x replicas, 3 when it has no times for the scenario's heads.\n"
      "Example: cpscope forecast scenarios/drawn_window.toml --cluster h200_ib --replicas 16\n"
      "         cpscope forecast scenarios/drawn_window.toml --cluster h200_ib --windows 10 "
      "--published");
  return {forecast, [options, tools] { return command_forecast(*options, tools); }};
}

}  // namespace cpscope
