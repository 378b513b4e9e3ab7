#include "sim/app/program_parts.h"
#include "sim/clock/forecast.h"

namespace cpscope {
namespace {

void add_cluster(CLI::App* app, CommandOptions& options) {
  app->add_option("--cluster", options.cluster,
                  "a file of scenarios/clusters by name (h200x8, h200_ib, ...), or any .toml")
      ->required()
      ->check(kNotEmpty);
  app->add_option("--stack", options.stack,
                  "whose kernels and schedule: a stack of the cluster file (default: its first)")
      ->check(kNotEmpty);
}

Command add_compare(CLI::App& app, CommandOptions& options, const PictureCommands& pictures) {
  CLI::App* compare = app.add_subcommand(
      "compare", "all communication types and layouts for one batch side by side, predicted");
  add_scenario_file(compare, options);
  add_cluster(compare, options);
  compare
      ->add_option("--dispatch-chunks", options.dispatch_chunks,
                   "chunks to try for lpt and lpt_local (default 256,512,1024,2048)")
      ->delimiter(',')
      ->check(whole_number(1, int64_t{1} << 31));
  compare->add_option("--csv", options.csv_path, "also write the table to this file")
      ->check(kNotEmpty);
  compare
      ->add_option("--out", options.picture_path,
                   "also draw time against bytes of every way (.png or .svg)")
      ->check(kNotEmpty);
  compare->add_option("--theme", options.theme, "of the picture: dark (default), light or print")
      ->check(CLI::IsMember({"dark", "light", "print"}));
  compare->add_flag("--full", options.full, "every candidate in the table");
  add_json(compare, options);
  compare->footer(
      "Exit code 2 when no candidate can be recommended.\n"
      "Example: cpscope compare scenarios/packed_group_cast.toml --cluster h200x8");
  return {compare, [&] { return command_compare(options, pictures); }};
}

Command add_forecast(CLI::App& app, CommandOptions& options) {
  CLI::App* forecast = app.add_subcommand(
      "forecast",
      "step time over many packed windows, and what data-parallel replicas lose by waiting for "
      "the slowest of them, predicted");
  add_scenario_file(forecast, options);
  add_cluster(forecast, options);
  forecast
      ->add_option("--windows", options.windows,
                   "batches to draw: the scenario with generator seeds counted up (default 256)")
      ->check(whole_number(1, int64_t{1} << 20));
  forecast
      ->add_option("--replicas", options.replicas,
                   "data-parallel replicas, cp_size ranks each (default 64, or as many as the "
                   "cluster holds)")
      ->check(whole_number(1, kMaxDrawnWindows));
  forecast
      ->add_option("--microbatches", options.microbatches,
                   "windows that each replica works on before it waits (default 1: exact over the "
                   "windows drawn; more: resampled)")
      ->check(whole_number(1, kMaxDrawnWindows));
  forecast
      ->add_option("--seed", options.first_seed,
                   "generator seed of the first window (default: the scenario's)")
      ->check(whole_number());
  forecast->add_option("--csv", options.csv_path, "also write a row for each window to this file")
      ->check(kNotEmpty);
  add_json(forecast, options);
  forecast->footer(
      "The batch must come from a generator that draws. Exit code 2 also when the cluster has\n"
      "fewer GPUs than cp_size x replicas, 3 when it has no times for the scenario's heads.\n"
      "Example: cpscope forecast scenarios/drawn_window.toml --cluster h200_ib --replicas 16");
  return {forecast, [&] { return command_forecast(options); }};
}

Command add_timeline(CLI::App& app, CommandOptions& options) {
  CLI::App* timeline =
      app.add_subcommand("timeline", "predicted time of every item on a described cluster");
  add_scenario_file(timeline, options);
  add_cluster(timeline, options);
  timeline
      ->add_option("--chakra", options.chakra_prefix,
                   "write a Chakra execution trace of each rank (MLCommons et_def.proto) to this "
                   "name and .0.et, .1.et, ...: for ASTRA-sim and other readers of the format")
      ->check(kNotEmpty);
  timeline
      ->add_option(
          "--record", options.measured_path,
          "a record of this plan with the times of its items (run --record on cuda or "
          "nccl): what was measured stands beside what is predicted, and how far off it is")
      ->check(kNotEmpty);
  timeline
      ->add_option("--trace", options.trace_path,
                   "write every item that takes time to this file, for ui.perfetto.dev or "
                   "chrome://tracing: a process for each rank, arrows to who reads what arrives")
      ->check(kNotEmpty);
  timeline
      ->add_option("--csv", options.csv_path,
                   "write a row for each of these items: pass, kind, index, rank, step, start_us, "
                   "end_us, bytes, pairs, to (a transfer's receiver; its rank is the sender)")
      ->check(kNotEmpty);
  add_json(timeline, options);
  timeline->footer(
      "Exit code 2 also when the cluster has fewer GPUs than the scenario ranks, 3 when it has no\n"
      "times for the scenario's heads.\n"
      "Example: cpscope timeline scenarios/million_tokens.toml --cluster h200_ib\n"
      "         cpscope timeline scenarios/thd_padding_p2p.toml --cluster h200x8 --trace "
      "ring.json");
  return {timeline, [&] { return command_timeline(options); }};
}

Command add_calibrate(CLI::App& app, CommandOptions& options, Toolbox& toolbox) {
  CLI::App* calibrate =
      app.add_subcommand("calibrate", "measures this machine and writes its cluster file");
  calibrate
      ->add_option("--executor", options.executors,
                   "whose kernels, and who drives several GPUs (default: cuda, and nccl where "
                   "there are two GPUs or more)")
      ->check(kNotEmpty);
  calibrate
      ->add_option("--base", options.base,
                   "a cluster by name or file: what cannot be measured here (one GPU: the wires) "
                   "is taken from it")
      ->check(kNotEmpty);
  calibrate
      ->add_option("--out", options.cluster_path,
                   "the cluster file, whose name the cluster gets (default machine.toml)")
      ->check(kNotEmpty);
  calibrate
      ->add_option("--repeats", options.repeats,
                   "carry out each scenario so often; the last time counts")
      ->check(whole_number(1, 1000000));
  calibrate
      ->add_option("--max-tokens", options.max_tokens,
                   "sequences up to twice as long are measured, messages up to 8 KiB for each "
                   "(default 16384)")
      ->check(whole_number(256, 1 << 20));
  calibrate
      ->add_option("--samples", options.samples_path,
                   "fit rates of this file (TOML: sim/app/calibration_samples.h) instead of "
                   "measuring, and print the tables [[stacks.kernels]]")
      ->check(kNotEmpty);
  add_json(calibrate, options);
  calibrate->footer(
      "Without a GPU: exit code 3, and nothing is written.\n"
      "Example: cpscope calibrate --base h200x8 --out mine.toml");
  return {calibrate, [&] { return command_calibrate(options, toolbox); }};
}

Command add_validate(CLI::App& app, CommandOptions& options) {
  CLI::App* validate = app.add_subcommand(
      "validate", "predictions beside what was measured and published, row by row");
  validate->add_option("FILE", options.paths,
                       "measurements (default: all of scenarios/clusters/measured)");
  validate->add_option("--out", options.page_path, "also write the page (Markdown) to this file")
      ->check(kNotEmpty);
  add_json(validate, options);
  validate->footer("Example: cpscope validate --out out/validation.md");
  return {validate, [&] { return command_validate(options); }};
}

}  // namespace

std::vector<Command> add_predicting(CLI::App& app, CommandOptions& options, Toolbox& toolbox,
                                    const PictureCommands& pictures) {
  return {add_timeline(app, options), add_compare(app, options, pictures),
          add_forecast(app, options), add_validate(app, options),
          add_calibrate(app, options, toolbox)};
}

}  // namespace cpscope
