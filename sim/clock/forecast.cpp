#include "sim/clock/forecast.h"

#include "sim/base/machine_memory.h"
#include "sim/base/parallel.h"
#include "sim/clock/candidate_figures.h"
#include "sim/clock/clock.h"
#include "sim/plan/plan_size.h"
#include "sim/plan/plan_summary.h"
#include "sim/plan/planner/planner.h"
#include "sim/scenario/generator.h"
#include "sim/scenario/scenario_parts.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

// Plans of 4096 ranks take 125 bytes per item, including what the planner and the clock allocate.
constexpr int64_t kBytesPerItem = 200;

/// Refuses scenarios whose batch or order does not depend on a seed, with an error that names the
/// key.
std::optional<Error> refuse_fixed(const Scenario& scenario) {
  const Batch& batch = scenario.batch;
  if (!batch.generator)
    return make_refusal("a forecast draws its windows, and the batch has fixed lengths",
                        "write generator = { name = \"wlb\", tokens = 131072 } in place of them",
                        {"batch.lengths", "batch.seqlen"});
  if (batch.generator->name == "csv")
    return make_refusal(
        "a forecast draws its windows, and no seed changes the lengths of generator csv",
        "use a generator that draws, such as wlb or lognormal", {"batch.generator"});
  if (!batch.self_attention || batch.slots != find_default_slots(batch, batch.lengths))
    return make_refusal("a forecast draws its windows, and the batch fixes slots or kv_lengths",
                        "leave kv_lengths, slots, seqlen and batch_size out",
                        {"batch.kv_lengths", "batch.slots", "batch.kv_slots", "batch.seqlen"});
  if (scenario.attention.mask_type == MaskType::slices)
    return make_refusal("a forecast draws its windows, and mask slices name tokens of one batch",
                        "use another attn_mask_type", {"attention.slices", "attention.mask"});
  if (scenario.parallel.group_rule == GroupRule::given)
    return make_refusal(
        "a forecast draws its windows, and cp_sizes lists the ranks of sequences",
        "use one size for all, or cp_sizes = \"hybrid\", \"flexsp\" or \"bytescale\"",
        {"parallel.cp_sizes"});
  if (scenario.parallel.layout == LayoutKind::indices)
    return make_refusal("a forecast draws its windows, and an imported order is of one batch",
                        "use another layout", {"parallel.indices_file"});
  return std::nullopt;
}

std::optional<Error> refuse_replicas(const Scenario& scenario, const Cluster& cluster,
                                     int64_t replicas) {
  const int64_t ranks = scenario.parallel.cp_size;
  if (ranks * replicas <= cluster.num_gpus()) return std::nullopt;
  return make_refusal(
      fmt::format("cluster {} has {} GPUs, replicas of the scenario want {}: {} ranks x {}",
                  cluster.name, cluster.num_gpus(), ranks * replicas, ranks, replicas),
      fmt::format("ask for at most {} replicas (--replicas), or a cluster of more nodes",
                  cluster.num_gpus() / ranks),
      {"parallel.cp_size"});
}

/// Number of windows that may be planned at a time; 0 when not even one fits.
int64_t windows_at_a_time(const Scenario& scenario, int64_t memory_bytes) {
  const int64_t items = std::max<int64_t>(1, estimate_plan_items(scenario));
  return memory_bytes / (items * kBytesPerItem);
}

Result<Scenario> draw_window(const Scenario& scenario, uint64_t seed) {
  Scenario window = scenario;
  Batch& batch = window.batch;
  batch.generator->seed = seed;
  Result<std::vector<int64_t>> lengths = generate_lengths(*batch.generator, "");
  if (!lengths) return lengths.error();
  batch.lengths = std::move(lengths).value();
  batch.kv_lengths = batch.lengths;
  batch.slots = find_default_slots(batch, batch.lengths);
  batch.kv_slots = batch.slots;
  int64_t tokens = 0;
  for (const int64_t slot : batch.slots) tokens += slot;
  if (tokens > kMaxTokens)
    return make_refusal(fmt::format("the padded window has more tokens than the limit of {}: {}",
                                    kMaxTokens, tokens),
                        "use qkv_format = \"thd\"", {"batch.qkv_format"});
  return window;
}

Result<WindowForecast> try_window(const Scenario& scenario, const Cluster& cluster,
                                  std::string_view stack, uint64_t seed) {
  const Result<Scenario> drawn = draw_window(scenario, seed);
  if (!drawn) return drawn.error();
  const Result<Plan> plan = make_plan(drawn.value());
  if (!plan) return plan.error();
  const Result<Timeline> timeline =
      predict(plan.value(), cluster, {.stack = stack, .keeps_events = false});
  if (!timeline) return timeline.error();
  const std::vector<int64_t>& lengths = drawn.value().batch.lengths;
  const PlanSummary summary = summarise(plan.value());
  WindowForecast window;
  window.seed = seed;
  window.sequences = static_cast<int64_t>(lengths.size());
  window.longest = *std::max_element(lengths.begin(), lengths.end());
  window.visible_pairs = summary.visible_pairs;
  window.forward_us = timeline.value().forward.total_us;
  window.backward_us = timeline.value().backward.total_us;
  window.mean = mean_times(timeline.value());
  window.rank_max_over_mean = summary.rank_max_over_mean;
  window.critical_path_over_ideal = summary.critical_path_over_ideal;
  window.padding_share = padding_share_of(plan.value());
  for (const int64_t bytes : timeline.value().memory_bytes)
    window.memory_bytes = std::max(window.memory_bytes, bytes);
  return window;
}

/// All windows, or the error of the first one that fails.
Result<std::vector<WindowForecast>> try_windows(const Scenario& scenario, const Cluster& cluster,
                                                const ForecastOptions& options,
                                                std::string_view stack, int threads) {
  const uint64_t first = options.first_seed.value_or(scenario.batch.generator->seed);
  std::vector<WindowForecast> windows(static_cast<size_t>(options.windows));
  std::vector<std::optional<Error>> errors(windows.size());
  std::atomic<int64_t> first_wrong = options.windows;
  RunWatch watch(options.control, options.windows);
  for_each_index(
      options.windows,
      [&](int64_t i) {
        // Windows before a failed one are still tried: one of them may fail first.
        if (watch.is_cancelled() || i > first_wrong.load()) return;
        const auto index = static_cast<size_t>(i);
        Result<WindowForecast> window =
            try_window(scenario, cluster, stack, first + static_cast<uint64_t>(i));
        if (window) {
          windows[index] = std::move(window).value();
        } else {
          errors[index] = window.error();
          int64_t known = first_wrong.load();
          while (i < known && !first_wrong.compare_exchange_weak(known, i)) {
          }
        }
        watch.advance();
      },
      threads);
  if (watch.was_cancelled()) return watch.error("the forecast", "windows");
  if (first_wrong.load() == options.windows) return windows;
  Error error = *errors[static_cast<size_t>(first_wrong.load())];
  for (Complaint& complaint : error.complaints)
    complaint.what += fmt::format(" (window of generator.seed {})",
                                  first + static_cast<uint64_t>(first_wrong.load()));
  return error;
}

std::optional<Error> refuse_options(const ForecastOptions& options, const Scenario& scenario,
                                    int64_t replicas) {
  const auto bad = [](std::string what, std::string hint) {
    return make_error(ErrorKind::bad_input, std::move(what), std::move(hint));
  };
  if (options.windows < 1 || replicas < 1 || options.microbatches < 1)
    return bad(fmt::format("windows, replicas and microbatches are at least 1: {}, {}, {}",
                           options.windows, replicas, options.microbatches),
               "ask for one or more of each");
  if (replicas > kMaxDrawnWindows / options.microbatches)
    return bad(fmt::format("replicas times microbatches is more than {}: {} x {}", kMaxDrawnWindows,
                           replicas, options.microbatches),
               "ask for fewer of either");
  const uint64_t first = options.first_seed.value_or(scenario.batch.generator->seed);
  const auto most = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (first > most - static_cast<uint64_t>(options.windows))
    return bad(fmt::format("the seeds of the windows pass the limit of {}: {} windows from {}",
                           most, options.windows, first),
               "begin with a smaller seed");
  return std::nullopt;
}

}  // namespace

int64_t replicas_of(const ForecastOptions& options, const Scenario& scenario,
                    const Cluster& cluster) {
  if (options.replicas != 0) return options.replicas;
  return std::min<int64_t>(kUsualReplicas, cluster.num_gpus() / scenario.parallel.cp_size);
}

std::optional<Error> refuse_forecast(const Scenario& scenario, const Cluster& cluster,
                                     const ForecastOptions& options) {
  if (const auto error = refuse_fixed(scenario)) return error;
  const Result<const Stack*> stack = find_stack(cluster, options.stack);
  if (!stack) return stack.error();
  const Result<const KernelCost*> kernels = find_kernel_cost(*stack.value(), scenario);
  if (!kernels) return kernels.error();
  if (const auto error = refuse_small_cluster(scenario, cluster)) return error;
  const int64_t replicas = replicas_of(options, scenario, cluster);
  if (const auto error = refuse_options(options, scenario, replicas)) return error;
  return refuse_replicas(scenario, cluster, replicas);
}

Result<Forecast> forecast_windows(const Scenario& scenario, const Cluster& cluster,
                                  const ForecastOptions& options) {
  if (const auto error = refuse_forecast(scenario, cluster, options)) return *error;
  if (const auto error = refuse_by_rule(scenario)) return *error;
  const std::string stack = find_stack(cluster, options.stack).value()->name;
  const int64_t replicas = replicas_of(options, scenario, cluster);
  const int64_t memory =
      options.memory_bytes > 0 ? options.memory_bytes : machine_memory_bytes() / 10 * 9;
  const int64_t at_a_time = windows_at_a_time(scenario, memory);
  if (at_a_time == 0)
    return make_refusal(
        fmt::format("the plan of a window would have about {} items, {} bytes each, and there are "
                    "{:.1f} GiB for it",
                    estimate_plan_items(scenario), kBytesPerItem, gibibytes(memory)),
        "use fewer ranks, a2a+p2p with larger groups, or backward = false", {"parallel.cp_size"});
  const int threads =
      static_cast<int>(std::min<int64_t>(at_a_time, static_cast<int64_t>(default_thread_count())));
  Result<std::vector<WindowForecast>> windows =
      try_windows(scenario, cluster, options, stack, threads);
  if (!windows) return windows.error();
  Forecast forecast;
  forecast.cluster = cluster.name;
  forecast.stack = stack;
  forecast.device_memory_gib = cluster.device.memory_gib;
  forecast.scenario = scenario;
  forecast.microbatches = options.microbatches;
  forecast.windows = std::move(windows).value();
  const ReplicaOptions steps{.replicas = replicas,
                             .microbatches = options.microbatches,
                             .seed = forecast.windows.front().seed};
  forecast.draws = options.microbatches > 1 ? resample_draws(steps) : 0;
  forecast.replicas = forecast_replicas(forecast.windows, steps);
  return forecast;
}

}  // namespace cpscope
