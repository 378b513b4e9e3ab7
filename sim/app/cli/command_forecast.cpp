#include "sim/app/cli/commands.h"
#include "sim/base/whole_file.h"
#include "sim/documents/forecast_text.h"
#include "sim/findings/progress_bar.h"
#include "sim/scenario/scenario_folder.h"

#include <iostream>
#include <memory>

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
  bool json = false;
};

int command_forecast(const ForecastArguments& options, const Tools&) {
  const Result<Cluster> cluster = load_cluster(options.on.cluster, shipped_clusters());
  if (!cluster) return report(cluster.error());
  const Result<LoadedScenario> loaded = load_scenario_alone(options.scenario_path, "forecast");
  if (!loaded) return report(loaded.error());
  ProgressBar bar(!options.json);
  const Result<Forecast> forecast = forecast_windows(loaded.value().scenario, cluster.value(),
                                                     {.stack = options.on.stack,
                                                      .windows = options.windows,
                                                      .replicas = options.replicas,
                                                      .microbatches = options.microbatches,
                                                      .first_seed = options.first_seed,
                                                      .control = {bar.phase("windows")}});
  if (!forecast) return report(forecast.error(), loaded.value());
  if (!options.csv_path.empty()) {
    const Result<size_t> written =
        write_whole_file(options.csv_path, forecast_csv(forecast.value()), "the table");
    if (!written) return report(written.error());
  }
  if (options.json) {
    std::cout << forecast_json(forecast.value()) << '\n';
  } else {
    write_forecast_text(forecast.value(), std::cout);
  }
  return 0;
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
  add_json(forecast, options->json);
  forecast->footer(
      "The batch must come from a generator that draws. Exit code 2 also when the cluster has\n"
      "fewer GPUs than cp_size x replicas, 3 when it has no times for the scenario's heads.\n"
      "Example: cpscope forecast scenarios/drawn_window.toml --cluster h200_ib --replicas 16");
  return {forecast, [options, tools] { return command_forecast(*options, tools); }};
}

}  // namespace cpscope
