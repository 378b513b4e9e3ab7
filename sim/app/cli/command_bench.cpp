#include "sim/app/cli/commands.h"
#include "sim/app/cli/verified_file.h"
#include "sim/app/predict/timeline_trace.h"
#include "sim/base/whole_file.h"
#include "sim/clock/clock.h"
#include "sim/documents/json_text.h"
#include "sim/plan/direction.h"
#include "sim/run/run_inputs.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace cpscope {
namespace {

struct BenchArguments {
  std::vector<std::string> paths;
  std::string executor, trace_folder;
  int32_t repeats = 5;
  bool json = false, turns = false;
};

/// Speed of one scenario on one executor. Times in milliseconds, rates in TFLOP/s a GPU of the
/// visible pairs alone: forward 2 (dim_qk + dim_v), backward 2 (3 dim_qk + 2 dim_v) a pair and
/// head.
struct Speed {
  std::string file, executor, kernels;
  int32_t ranks = 0;
  int32_t gpus = 1;                                             // that share the work
  double forward_ms = 0, backward_ms = 0;                       // whole pass, median of the repeats
  std::vector<double> forward_samples_ms, backward_samples_ms;  // [repeat] whole pass
  double forward_kernel_ms = 0, backward_kernel_ms = 0;         // while some rank computes
  double forward_cast_ms = 0, backward_cast_ms = 0;             // of it FP8's casts, all ranks
  double forward_pairs = 0;                                     // (query, key, head) triples
  double forward_tflops = 0, backward_tflops = 0;               // of the kernels
  double pass_tflops = 0, backward_pass_tflops = 0;             // of the whole pass
  double plan_ms = 0, lists_ms = 0;  // once a layout: plan with proof, a rank's lists of tiles
  double transfer_ms = 0;            // in transfers, all ranks
  double hidden_fraction = 0;        // of it beside computes of the same rank
  Json steps;
  std::vector<ItemEvent> events;  // of one repeat
};

double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::vector<double> to_milliseconds(std::vector<double> seconds) {
  for (double& value : seconds) value *= 1e3;
  return seconds;
}

using Stretches = std::vector<std::pair<int64_t, int64_t>>;

/// Time that `event` shares with any of `others`, which are disjoint and sorted.
int64_t covered(const ItemEvent& event, const Stretches& others) {
  int64_t sum = 0;
  for (const auto& [start, end] : others)
    sum += std::max<int64_t>(0, std::min(end, event.end_ns) - std::max(start, event.start_ns));
  return sum;
}

/// When computes of one direction ran, of all ranks or of one, as disjoint stretches. Computes that
/// ran beside each other count once.
Stretches busy_stretches(const RunOutput& output, Direction direction, std::optional<RankId> rank) {
  Stretches stretches;
  for (const ItemEvent& event : output.events) {
    if (event.item.kind != StageKind::compute || event.item.direction != direction) continue;
    if (rank && event.rank != *rank) continue;
    if (!stretches.empty() && event.start_ns <= stretches.back().second) {
      stretches.back().second = std::max(stretches.back().second, event.end_ns);
    } else {
      stretches.emplace_back(event.start_ns, event.end_ns);
    }
  }
  return stretches;
}

double milliseconds_of(const Stretches& stretches) {
  int64_t sum = 0;
  for (const auto& [start, end] : stretches) sum += end - start;
  return static_cast<double>(sum) * 1e-6;
}

void add_kernel_times(const RunOutput& output, const Attention& attention, Speed& speed) {
  int64_t transfer = 0, hidden = 0;
  std::map<std::pair<Direction, RankId>, Stretches> busy;
  for (const ItemEvent& event : output.events) {
    if (event.item.kind != StageKind::transfer) continue;
    transfer += event.end_ns - event.start_ns;
    const auto [of_rank, is_new] = busy.try_emplace({event.item.direction, event.rank});
    if (is_new) of_rank->second = busy_stretches(output, event.item.direction, event.rank);
    hidden += covered(event, of_rank->second);
  }
  const auto kernel_ms = [&](Direction direction) {
    return milliseconds_of(busy_stretches(output, direction, std::nullopt));
  };
  speed.forward_kernel_ms = kernel_ms(Direction::forward);
  speed.backward_kernel_ms = kernel_ms(Direction::backward);
  for (const ItemEvent& event : output.events) {
    double& casts =
        event.item.direction == Direction::forward ? speed.forward_cast_ms : speed.backward_cast_ms;
    casts += static_cast<double>(event.cast_ns) * 1e-6;
  }
  const double pairs = speed.forward_pairs / speed.gpus;
  const auto rate = [&](Direction direction, double ms) {
    return ms > 0 ? flops_per_pair(attention, direction) * pairs / ms * 1e-9 : 0.0;
  };
  speed.forward_tflops = rate(Direction::forward, speed.forward_kernel_ms);
  speed.backward_tflops = rate(Direction::backward, speed.backward_kernel_ms);
  speed.pass_tflops = rate(Direction::forward, speed.forward_ms);
  speed.backward_pass_tflops = rate(Direction::backward, speed.backward_ms);
  speed.transfer_ms = static_cast<double>(transfer) * 1e-6;
  speed.hidden_fraction =
      transfer > 0 ? static_cast<double>(hidden) / static_cast<double>(transfer) : 0.0;
}

/// What a rank did in one step of a pass, in one repeat: sums of microseconds by kind, and
/// when the first item began and the last one ended, from the start of the run.
struct StepTimes {
  double compute_us = 0, local_us = 0;              // local: merges, reorders and finishes
  std::string kernels;                              // of its compute item
  std::set<std::pair<int64_t, int64_t>> transfers;  // stretches; items of a stage share one
  int64_t start_ns = std::numeric_limits<int64_t>::max();
  int64_t end_ns = 0;
};

Json step_json(StepId step, RankId rank, const StepTimes& times) {
  double transfer_us = 0;
  for (const auto& [start_ns, end_ns] : times.transfers)
    transfer_us += static_cast<double>(end_ns - start_ns) * 1e-3;
  return {{"step", to_index(step)},
          {"rank", to_index(rank)},
          {"compute_us", times.compute_us},
          {"kernels", times.kernels},
          {"transfer_us", transfer_us},
          {"local_us", times.local_us},
          {"start_us", static_cast<double>(times.start_ns) * 1e-3},
          {"end_us", static_cast<double>(times.end_ns) * 1e-3}};
}

/// {"forward": [{step, rank, ...}], "backward": ...}, by step, then rank.
Json steps_json(const RunOutput& output) {
  ByDirection<std::map<std::pair<StepId, RankId>, StepTimes>> passes;
  for (const ItemEvent& event : output.events) {
    StepTimes& times = passes[event.item.direction][{event.step, event.rank}];
    const double us = static_cast<double>(event.end_ns - event.start_ns) * 1e-3;
    if (event.item.kind == StageKind::compute) {
      times.compute_us += us;
      const auto& kernels = output.item_kernels[event.item.direction];
      const auto i = static_cast<size_t>(event.item.index);
      if (i < kernels.size()) times.kernels = kernels[i];
    } else if (event.item.kind == StageKind::transfer) {
      times.transfers.insert({event.start_ns, event.end_ns});
    } else {
      times.local_us += us;
    }
    times.start_ns = std::min(times.start_ns, event.start_ns);
    times.end_ns = std::max(times.end_ns, event.end_ns);
  }
  Json steps = Json::object();
  for (const Direction direction : kDirections) {
    Json rows = Json::array();
    for (const auto& [key, times] : passes[direction])
      rows.push_back(step_json(key.first, key.second, times));
    steps[std::string(to_name(direction))] = rows;
  }
  return steps;
}

/// A scenario that is ready to be carried out, but for its inputs.
struct BenchCase {
  std::string file;
  Scenario scenario;
  CheckedPlan plan;
  double plan_ms = 0;  // that planning and proof took
};

/// Inputs of one case after another. The next case often asks for the same batch in another way;
/// then they stay.
class LastInputs {
 public:
  const RunInputs& of(const BenchCase& wanted) {
    const BatchSlots& slots = wanted.plan.plan().layout.slots;
    const bool stays =
        inputs_ && attention_ == wanted.scenario.attention &&
        numerics_ == wanted.scenario.numerics && inputs_->slots.sequences == slots.sequences &&
        inputs_->slots.tokens == slots.tokens && inputs_->slots.kv_tokens == slots.kv_tokens;
    if (!stays) {
      inputs_.reset();  // never two of them in memory
      inputs_ = make_run_inputs(wanted.plan.plan(), false);
      attention_ = wanted.scenario.attention;
      numerics_ = wanted.scenario.numerics;
    }
    return *inputs_;
  }

 private:
  Attention attention_;
  Numerics numerics_;
  std::optional<RunInputs> inputs_;
};

Result<BenchCase> prepare(const std::string& file) {
  const Result<LoadedScenario> loaded = load_with_warnings(file);
  if (!loaded) return loaded.error();
  const auto start = std::chrono::steady_clock::now();
  Result<CheckedPlan> plan = plan_scenario(loaded.value());
  if (!plan) return plan.error();
  const std::chrono::duration<double, std::milli> plan_ms =
      std::chrono::steady_clock::now() - start;
  return BenchCase{file, loaded.value().scenario, std::move(plan).value(), plan_ms.count()};
}

Result<Speed> measure(Executor& executor, const BenchCase& wanted, const RunInputs& inputs,
                      int32_t repeats) {
  const Scenario& scenario = wanted.scenario;
  RunOptions options;
  options.measures_items = true;
  options.repeats = repeats;
  Result<RunOutput> output = executor.run(wanted.plan, inputs, options);
  if (!output) return output.error();
  Speed speed;
  speed.file = wanted.file;
  speed.executor = executor.name();
  speed.kernels = output.value().kernels;
  speed.ranks = scenario.parallel.cp_size;
  speed.gpus = executor.name() == "nccl" ? speed.ranks : 1;
  speed.forward_samples_ms = to_milliseconds(output.value().forward_seconds);
  speed.backward_samples_ms = to_milliseconds(output.value().backward_seconds);
  speed.forward_ms = median(speed.forward_samples_ms);
  speed.backward_ms = median(speed.backward_samples_ms);
  speed.forward_pairs = static_cast<double>(summarise(wanted.plan.plan()).visible_pairs);
  add_kernel_times(output.value(), scenario.attention, speed);
  speed.plan_ms = wanted.plan_ms;
  speed.lists_ms = output.value().list_seconds * 1e3;
  speed.steps = steps_json(output.value());
  speed.events = std::move(output.value().events);
  return speed;
}

Json speed_json(const Speed& speed) {
  return {{"file", speed.file},
          {"executor", speed.executor},
          {"kernels", speed.kernels},
          {"ranks", speed.ranks},
          {"pairs", speed.forward_pairs},
          {"forward_ms", speed.forward_ms},
          {"backward_ms", speed.backward_ms},
          {"forward_samples_ms", speed.forward_samples_ms},
          {"backward_samples_ms", speed.backward_samples_ms},
          {"forward_kernel_ms", speed.forward_kernel_ms},
          {"backward_kernel_ms", speed.backward_kernel_ms},
          {"forward_cast_ms", speed.forward_cast_ms},
          {"backward_cast_ms", speed.backward_cast_ms},
          {"forward_tflops", speed.forward_tflops},
          {"backward_tflops", speed.backward_tflops},
          {"forward_pass_tflops", speed.pass_tflops},
          {"backward_pass_tflops", speed.backward_pass_tflops},
          {"gpus", speed.gpus},
          {"plan_ms", speed.plan_ms},
          {"lists_ms", speed.lists_ms},
          {"transfer_ms", speed.transfer_ms},
          {"hidden_fraction", speed.hidden_fraction},
          {"steps", speed.steps}};
}

void print_header() {
  std::cout << fmt::format(
      "{:<40} {:<13} {:<8} {:>5}  {:>9} {:>9} {:>8} {:>8}  {:>9} {:>9} {:>8} {:>8}  {:>6}\n",
      "scenario", "executor", "kernels", "ranks", "pass ms", "bwd", "TFLOP/s", "bwd", "kernel ms",
      "bwd", "TFLOP/s", "bwd", "hidden");
}

void print_line(const Speed& speed) {
  std::cout << fmt::format(
      "{:<40} {:<13} {:<8} {:>5}  {:>9.3f} {:>9.3f} {:>8.1f} {:>8.1f}  {:>9.3f} {:>9.3f} {:>8.1f} "
      "{:>8.1f}  {:>5.0f}%\n",
      std::filesystem::path(speed.file).stem().string(), speed.executor, speed.kernels, speed.ranks,
      speed.forward_ms, speed.backward_ms, speed.pass_tflops, speed.backward_pass_tflops,
      speed.forward_kernel_ms, speed.backward_kernel_ms, speed.forward_tflops,
      speed.backward_tflops, 100 * speed.hidden_fraction);
  std::cout.flush();
}

/// Files of traces in one folder, named as their scenarios.
class TraceFolder {
 public:
  explicit TraceFolder(std::string folder) : folder_(std::move(folder)) {}

  std::optional<Error> make() const {
    if (folder_.empty()) return std::nullopt;
    std::error_code failure;
    std::filesystem::create_directories(folder_, failure);
    if (std::filesystem::is_directory(folder_)) return std::nullopt;
    return make_error(ErrorKind::bad_input, "cannot make the folder of --traces",
                      "name a folder that may be written", folder_);
  }

  std::optional<Error> write(const BenchCase& of, const Speed& speed) {
    if (folder_.empty()) return std::nullopt;
    if (speed.events.empty())
      return make_error(ErrorKind::unavailable,
                        fmt::format("executor {} has no clock: there is no trace", speed.executor),
                        "cuda, cuda-portable and nccl have one");
    const Result<size_t> bytes = write_whole_file(
        name_for(of.file),
        [&](std::ostream& out) {
          write_measured_trace(of.plan.plan(), from_the_start(speed.events),
                               fmt::format("executor {}{}{}; measured", speed.executor,
                                           speed.kernels.empty() ? "" : ", ", speed.kernels),
                               out);
        },
        "the trace");
    return bytes ? std::nullopt : std::optional(bytes.error());
  }

 private:
  std::string name_for(const std::string& file) {
    const std::string stem = std::filesystem::path(file).stem().string();
    const int32_t number = ++used_[stem];
    const std::string name = number == 1 ? stem : fmt::format("{}-{}", stem, number);
    return (std::filesystem::path(folder_) / (name + ".json")).string();
  }

  /// Forward from 0 on, backward behind it: between them the run did other things.
  static std::vector<ItemEvent> from_the_start(std::vector<ItemEvent> events) {
    constexpr int64_t kBetween = 100'000;  // ns
    int64_t begin = 0;
    for (const Direction direction : kDirections) {
      int64_t first = std::numeric_limits<int64_t>::max(), last = 0;
      for (const ItemEvent& event : events) {
        if (event.item.direction != direction) continue;
        first = std::min(first, event.start_ns);
        last = std::max(last, event.end_ns);
      }
      for (ItemEvent& event : events) {
        if (event.item.direction != direction) continue;
        event.start_ns += begin - first;
        event.end_ns += begin - first;
      }
      if (last > 0) begin += last - first + kBetween;
    }
    return events;
  }

  std::string folder_;
  std::map<std::string, int32_t> used_;  // [name]
};

void say(const Json& line) { std::cout << print_json(line) << std::endl; }

/// Measures when it is asked to, so that others can be measured in between. Of every file: a line
/// once its inputs are made, and another one after each "turn", until "next". What is wrong with a
/// file stands in its lines.
int take_turns(Executor& executor, const std::vector<std::string>& files, int32_t repeats,
               std::istream& words) {
  LastInputs inputs;
  int code = 0;
  const auto complain = [&](const std::string& file, const Error& error) {
    code = report(error);
    say({{"file", file}, {"error", to_text(error)}});
  };
  for (const std::string& file : files) {
    const Result<BenchCase> wanted = prepare(file);
    if (wanted) {
      inputs.of(wanted.value());
      say({{"file", file}, {"ready", true}});
    } else {
      complain(file, wanted.error());
    }
    for (std::string word; std::getline(words, word) && word != "next";) {
      if (word != "turn") {
        complain(file, make_error(ErrorKind::bad_input, "no such word for a turn: " + word,
                                  "turn | next"));
      } else if (wanted) {
        const BenchCase& known = wanted.value();
        const Result<Speed> speed = measure(executor, known, inputs.of(known), repeats);
        speed ? say(speed_json(speed.value())) : complain(file, speed.error());
      } else {
        complain(file, wanted.error());
      }
    }
  }
  return code;
}

int command_bench(const BenchArguments& options, const Tools& tools) {
  const Result<Executor*> executor = find_executor(tools.toolbox, options.executor);
  if (!executor) return report(executor.error());
  const Result<std::vector<std::string>> files = find_scenarios(options.paths);
  if (!files) return report(files.error());
  if (options.turns) return take_turns(*executor.value(), files.value(), options.repeats, std::cin);
  TraceFolder traces(options.trace_folder);
  if (const auto error = traces.make()) return report(*error);
  Json rows = Json::array();
  if (!options.json) print_header();
  LastInputs inputs;
  int code = 0;
  for (const std::string& file : files.value()) {
    const Result<BenchCase> wanted = prepare(file);
    const Result<Speed> speed = wanted ? measure(*executor.value(), wanted.value(),
                                                 inputs.of(wanted.value()), options.repeats)
                                       : Result<Speed>(wanted.error());
    if (!speed) {
      code = report(speed.error());
      continue;
    }
    if (options.json) {
      rows.push_back(speed_json(speed.value()));
    } else {
      print_line(speed.value());
    }
    if (const auto error = traces.write(wanted.value(), speed.value())) code = report(*error);
  }
  if (options.json) std::cout << print_json({{"schema", 1}, {"rows", rows}}) << '\n';
  return code;
}

}  // namespace

Command add_bench(CLI::App& app, const Tools& tools) {
  const auto options = std::make_shared<BenchArguments>();
  CLI::App* bench = app.add_subcommand(
      "bench", "how fast an executor carries out scenarios; no judging, inputs as in `run`");
  bench->add_option("PATH", options->paths, "scenario files or folders")->required();
  add_executor(bench, options->executor);
  add_json(bench, options->json);
  bench
      ->add_option("--repeats", options->repeats, "carry out each pass so often; medians are shown")
      ->check(whole_number(1, 1000000));
  CLI::Option* traces = bench->add_option(
      "--traces", options->trace_folder,
      "write when the items of one repeat of each scenario ran to NAME.json in this folder, for "
      "ui.perfetto.dev or chrome://tracing: a process for each rank, as timeline --trace has them");
  bench
      ->add_flag(
          "--turns", options->turns,
          "measure a file at each line \"turn\" of standard input, go on at \"next\"; answers "
          "are JSON, one document a line, so that others can be measured in between")
      ->excludes(traces);
  bench->footer("Example: cpscope bench tests/bench/speed --executor cuda --repeats 10");
  return {bench, [options, tools] { return command_bench(*options, tools); }};
}

}  // namespace cpscope
