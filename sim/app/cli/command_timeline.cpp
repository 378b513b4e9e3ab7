#include "sim/app/cli/commands.h"
#include "sim/app/predict/chakra_trace.h"
#include "sim/app/predict/timeline_trace.h"
#include "sim/base/whole_file.h"
#include "sim/documents/timeline_text.h"
#include "sim/run/record/record_match.h"
#include "sim/scenario/scenario_folder.h"
#include "sim/scenario/text_file.h"

#include <array>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace cpscope {
namespace {

struct TimelineArguments {
  std::string scenario_path;
  ClusterChoice on;
  std::string chakra_prefix, record_path, trace_path, csv_path;
  std::vector<std::string> measured;
  std::optional<int64_t> layer;
  bool json = false;
};

/// Can the file that `option` names be written? Asked before anything is worked out. (That it is
/// nobody else's, check_outputs has seen.)
std::optional<Error> check_out_path(const std::string& option, const std::string& path) {
  const auto refuse = [&](const char* what, const char* hint) {
    return make_error(ErrorKind::bad_input, fmt::format("{}: {}: {}", option, what, path), hint);
  };
  std::error_code failure;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder, failure))
    return refuse("the folder is not there", "make it first");
  if (std::filesystem::exists(path, failure) && !std::filesystem::is_regular_file(path, failure))
    return refuse("something that is no file has this name", "name a file");
  return std::nullopt;
}

std::optional<Error> check_out_paths(const TimelineArguments& options) {
  // Of a Chakra trace the first file stands for all.
  const std::string chakra =
      options.chakra_prefix.empty() ? std::string() : options.chakra_prefix + ".0.et";
  const std::array<std::pair<const char*, const std::string*>, 3> files = {
      {{"--trace", &options.trace_path}, {"--csv", &options.csv_path}, {"--chakra", &chakra}}};
  for (const auto& [option, path] : files) {
    if (path->empty()) continue;
    if (auto error = check_out_path(option, *path)) return error;
  }
  const auto whole = [](const std::string& path) {
    return std::filesystem::absolute(path).lexically_normal();
  };
  for (const auto& [option, path] : {files[0], files[1]}) {
    if (path->empty() || options.chakra_prefix.empty()) continue;
    const std::string name = whole(*path).string();
    if (name.ends_with(".et") && name.starts_with(whole(options.chakra_prefix).string() + "."))
      return make_error(ErrorKind::bad_input,
                        fmt::format("{} and --chakra name the same file: {}", option, *path),
                        "give each a name of its own");
  }
  return std::nullopt;
}

/// Writes the files that were asked for; gives a line for each.
Result<std::string> write_exports(const TimelineExport& times, const TimelineArguments& options) {
  std::string said;
  const auto write = [&](const std::string& path, const std::string& noun, auto print) {
    std::optional<Error> error;
    if (path.empty()) return error;
    const Result<size_t> bytes = write_whole_file(
        path, [&](std::ostream& out) { print(times, out); }, "the " + noun);
    if (!bytes) return std::optional(bytes.error());
    said += fmt::format("{}: {}, {} bytes\n", noun, path, bytes.value());
    return error;
  };
  if (auto error = write(options.trace_path, "trace", write_timeline_trace)) return *error;
  if (auto error = write(options.csv_path, "table", write_timeline_csv)) return *error;
  if (options.chakra_prefix.empty()) return said;
  const Result<size_t> bytes = write_chakra(times, options.chakra_prefix);
  if (!bytes) return bytes.error();
  const size_t last = times.plan.home.size() - 1;
  return said +
         fmt::format("Chakra: {}.0.et{}, {} bytes\n", options.chakra_prefix,
                     last > 0 ? fmt::format(" to {}.{}.et", options.chakra_prefix, last) : "",
                     bytes.value());
}

/// The times that a record of this plan holds.
Result<std::vector<ItemEvent>> read_recorded(const std::string& path, const Plan& plan) {
  Result<RunRecord> record = read_record(path);
  if (!record) return record.error();
  if (auto error = check_record(record.value(), plan, path)) return *error;
  if (auto error = check_events(record.value(), plan, path)) return *error;
  if (record.value().events.empty() || record.value().clock != "measured")
    return make_error(ErrorKind::bad_input, "This record holds no measured times",
                      "record the run on an executor with a clock: cuda or nccl", path);
  return std::move(record.value().events);
}

}  // namespace

namespace {

int command_timeline(const TimelineArguments& options, const Tools&) {
  if (const auto error = check_out_paths(options)) return report(*error);
  const Result<Cluster> cluster = load_cluster(options.on.cluster, shipped_clusters());
  if (!cluster) return report(cluster.error());
  const Result<LoadedScenario> loaded = load_with_warnings(options.scenario_path);
  if (!loaded) return report(loaded.error());
  const Result<CheckedPlan> checked = plan_scenario(loaded.value());
  if (!checked) return report(checked.error());
  const Plan& plan = checked.value().plan();
  std::vector<ItemEvent> measured;
  if (!options.record_path.empty()) {
    Result<std::vector<ItemEvent>> events = read_recorded(options.record_path, plan);
    if (!events) return report(events.error());
    measured = std::move(events).value();
  }
  std::optional<TraceMatch> traces;
  if (!options.measured.empty()) {
    Result<TraceMatch> match = match_traces(plan, trace_sources(options.measured), options.layer);
    if (!match) return report(match.error());
    traces = std::move(match).value();
    measured = traces->events;
  }
  const Result<Timeline> timeline = predict(plan, cluster.value(), {options.on.stack, true});
  if (!timeline) return report(timeline.error(), loaded.value());
  const TimelineExport times{plan, cluster.value(), timeline.value(), measured,
                             traces ? &*traces : nullptr};
  const Result<std::string> written = write_exports(times, options);
  if (!written) return report(written.error());
  if (options.json) {
    write_timeline_json(times, std::cout);
  } else {
    write_timeline_text(times, std::cout);
    std::cout << written.value();
  }
  return 0;
}

}  // namespace

Command add_timeline(CLI::App& app, const Tools& tools) {
  const auto options = std::make_shared<TimelineArguments>();
  CLI::App* timeline =
      app.add_subcommand("timeline", "predicted time of every item on a described cluster");
  add_scenario_file(timeline, options->scenario_path);
  add_cluster(timeline, options->on);
  timeline
      ->add_option("--chakra", options->chakra_prefix,
                   "write a Chakra execution trace of each rank (MLCommons et_def.proto) to this "
                   "name and .0.et, .1.et, ...: for ASTRA-sim and other readers of the format")
      ->check(kNotEmpty);
  timeline
      ->add_option("--record", options->record_path,
                   "a record of this plan with the times of its items (run --record on cuda or "
                   "nccl): prints measured next to predicted times, and the error")
      ->check(kNotEmpty);
  add_measured(timeline, options->measured, options->layer)->excludes("--record");
  timeline
      ->add_option("--trace", options->trace_path,
                   "write every item that takes time to this file, for ui.perfetto.dev or "
                   "chrome://tracing: a process for each rank, arrows to who reads what arrives")
      ->check(kNotEmpty);
  timeline
      ->add_option("--csv", options->csv_path,
                   "write a row for each of these items: pass, kind, index, rank, step, start_us, "
                   "end_us, bytes, pairs, to (a transfer's receiver; its rank is the sender)")
      ->check(kNotEmpty);
  add_json(timeline, options->json);
  timeline->footer(
      "Exit code 2 also when the cluster has fewer GPUs than the scenario ranks, 3 when it has no\n"
      "times for the scenario's heads.\n"
      "Example: cpscope timeline scenarios/million_tokens.toml --cluster h200_ib\n"
      "         cpscope timeline scenarios/thd_padding_p2p.toml --cluster h200x8 --trace "
      "ring.json\n"
      "         cpscope timeline mine.toml --cluster h200x8 --measured rank0.json.gz "
      "rank1.json.gz");
  return {timeline, [options, tools] { return command_timeline(*options, tools); }};
}

}  // namespace cpscope
