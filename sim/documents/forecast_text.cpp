#include "sim/documents/forecast_text.h"

#include "sim/documents/json_text.h"

#include <array>
#include <ostream>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// A figure of a window that has a distribution: its key in JSON, its line in the table.
struct WindowFigure {
  const char* key;
  const char* title;
  double scale;  // of the table
  double (*of)(const WindowForecast&);
};

constexpr std::array<WindowFigure, 10> kFigures = {{
    {"total_us", "forward + backward ms", 1e-3,
     [](const WindowForecast& w) { return w.total_us(); }},
    {"forward_us", "forward ms", 1e-3, [](const WindowForecast& w) { return w.forward_us; }},
    {"backward_us", "backward ms", 1e-3, [](const WindowForecast& w) { return w.backward_us; }},
    {"compute_us", "  attention ms", 1e-3,
     [](const WindowForecast& w) { return w.mean.compute_us; }},
    {"local_us", "  merges and moves ms", 1e-3,
     [](const WindowForecast& w) { return w.mean.local_us; }},
    {"exposed_us", "  exposed ms", 1e-3, [](const WindowForecast& w) { return w.mean.exposed_us; }},
    {"idle_us", "  idle ms", 1e-3, [](const WindowForecast& w) { return w.mean.idle_us; }},
    {"rank_max_over_mean", "busiest rank / mean", 1.0,
     [](const WindowForecast& w) { return w.rank_max_over_mean; }},
    {"critical_path_over_ideal", "critical path / ideal", 1.0,
     [](const WindowForecast& w) { return w.critical_path_over_ideal; }},
    {"padding_share", "padding %", 100.0, [](const WindowForecast& w) { return w.padding_share; }},
}};

Distribution distribution_of_figure(const Forecast& forecast, const WindowFigure& figure) {
  std::vector<double> values;
  for (const WindowForecast& window : forecast.windows) values.push_back(figure.of(window));
  return distribution_of(std::move(values));
}

int64_t count_too_large(const Forecast& forecast) {
  int64_t count = 0;
  for (const WindowForecast& window : forecast.windows)
    count += static_cast<double>(window.memory_bytes) > forecast.device_memory_gib * (1 << 30);
  return count;
}

Json times_json(const MeanTimes& times) {
  return {{"compute", times.compute_us},
          {"local", times.local_us},
          {"exposed", times.exposed_us},
          {"idle", times.idle_us}};
}

Json window_json(const WindowForecast& window) {
  return {{"seed", window.seed},
          {"sequences", window.sequences},
          {"longest", window.longest},
          {"visible_pairs", window.visible_pairs},
          {"forward_us", window.forward_us},
          {"backward_us", window.backward_us},
          {"total_us", window.total_us()},
          {"mean_us", times_json(window.mean)},
          {"imbalance",
           {{"rank_max_over_mean", window.rank_max_over_mean},
            {"critical_path_over_ideal", window.critical_path_over_ideal}}},
          {"padding_share", window.padding_share},
          {"memory_bytes", window.memory_bytes}};
}

Json replicas_json(const ReplicaForecast& step, int32_t cp_size) {
  Json json = {{"replicas", step.replicas},
               {"ranks", step.replicas * cp_size},
               {"slowest_us", step.slowest_us},
               {"slowest_error_us", step.slowest_error_us},
               {"efficiency", step.efficiency}};
  json["efficiency_error"] = step.efficiency_error ? Json(*step.efficiency_error) : Json(nullptr);
  json["slowest_mean_us"] = times_json(step.slowest);
  return json;
}

}  // namespace

void write_forecast_text(const Forecast& forecast, std::ostream& out) {
  const Parallel& parallel = forecast.scenario.parallel;
  const Generator& generator = *forecast.scenario.batch.generator;
  out << fmt::format(
      "{} windows of {} tokens (generator {}, seeds {} to {}) on {}, stack {}: {} ranks, {}, {}; "
      "attention of one layer, predicted, not measured\n",
      forecast.windows.size(), generator.tokens, generator.name, forecast.windows.front().seed,
      forecast.windows.back().seed, forecast.cluster, forecast.stack, parallel.cp_size,
      to_name(parallel.comm_type), to_name(parallel.layout));
  out << fmt::format("{:<24}{:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}\n", "a window", "mean",
                     "deviation", "least", "50 %", "90 %", "99 %", "most");
  for (const WindowFigure& figure : kFigures) {
    const Distribution d = distribution_of_figure(forecast, figure);
    out << fmt::format("{:<24}", figure.title);
    for (const double value :
         {d.mean, d.deviation, d.least, d.median, d.percent_90, d.percent_99, d.most})
      out << fmt::format("{:>10.3f} ", figure.scale * value);
    out << '\n';
  }
  if (const int64_t count = count_too_large(forecast); count > 0)
    out << fmt::format("{} windows need more memory than a GPU has ({} GiB)\n", count,
                       forecast.device_memory_gib);
  out << fmt::format(
      "a step of replicas that draw {} of these each and wait for the slowest{}\n",
      forecast.microbatches == 1 ? "one" : fmt::format("{}", forecast.microbatches),
      forecast.draws > 0
          ? fmt::format(", {} steps drawn (+- of the mean time: theirs)", forecast.draws)
          : ", exact over the windows");
  out << fmt::format("{:>8} {:>8} {:>12} {:>8} {:>13} {:>7}\n", "replicas", "ranks", "slowest ms",
                     "+-", "efficiency %", "+-");
  for (const ReplicaForecast& step : forecast.replicas) {
    out << fmt::format(
        "{:>8} {:>8} {:>12.3f} {:>8.3f} {:>13.2f} {:>7}\n", step.replicas,
        step.replicas * parallel.cp_size, step.slowest_us * 1e-3, step.slowest_error_us * 1e-3,
        100 * step.efficiency,
        step.efficiency_error ? fmt::format("{:.2f}", 100 * *step.efficiency_error) : "?");
  }
  out << explain_loss(forecast) << '\n';
}

std::string forecast_json(const Forecast& forecast) {
  const Parallel& parallel = forecast.scenario.parallel;
  Json json = {{"schema", 1},
               {"cluster", forecast.cluster},
               {"stack", forecast.stack},
               {"cp_size", parallel.cp_size},
               {"cp_comm_type", to_name(parallel.comm_type)},
               {"layout", to_name(parallel.layout)},
               {"first_seed", forecast.windows.front().seed},
               {"microbatches", forecast.microbatches},
               {"draws", forecast.draws},
               {"windows_that_do_not_fit", count_too_large(forecast)}};
  Json& distributions = json["distribution"];
  for (const WindowFigure& figure : kFigures) {
    const Distribution d = distribution_of_figure(forecast, figure);
    distributions[figure.key] = {
        {"mean", d.mean},      {"deviation", d.deviation}, {"min", d.least}, {"q50", d.median},
        {"q90", d.percent_90}, {"q99", d.percent_99},      {"max", d.most}};
  }
  Json& replicas = json["replicas"] = Json::array();
  for (const ReplicaForecast& step : forecast.replicas)
    replicas.push_back(replicas_json(step, parallel.cp_size));
  Json& windows = json["windows"] = Json::array();
  for (const WindowForecast& window : forecast.windows) windows.push_back(window_json(window));
  json["explanation"] = explain_loss(forecast);
  return print_json(json);
}

std::string forecast_csv(const Forecast& forecast) {
  std::string text =
      "seed,sequences,longest,visible_pairs,forward_us,backward_us,total_us,compute_us,local_us,"
      "exposed_us,idle_us,rank_max_over_mean,critical_path_over_ideal,padding_share,memory_bytes\n";
  for (const WindowForecast& w : forecast.windows) {
    text += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n", w.seed, w.sequences,
                        w.longest, w.visible_pairs, w.forward_us, w.backward_us, w.total_us(),
                        w.mean.compute_us, w.mean.local_us, w.mean.exposed_us, w.mean.idle_us,
                        w.rank_max_over_mean, w.critical_path_over_ideal, w.padding_share,
                        w.memory_bytes);
  }
  return text;
}

}  // namespace cpscope
