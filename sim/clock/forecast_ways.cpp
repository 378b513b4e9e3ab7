#include "sim/clock/forecast_ways.h"

#include "sim/clock/candidate_figures.h"
#include "sim/scenario/scenario_names.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// A rank may hold twice its share of a window, unless the scenario gives a limit.
int64_t usual_limit(const Scenario& scenario) {
  const int64_t tokens = scenario.batch.generator->tokens, ranks = scenario.parallel.cp_size;
  return std::max<int64_t>(1, (2 * tokens + ranks - 1) / ranks);
}

/// The figures of one way; a refusal of a window is the way's own.
Result<WayForecast> try_way(const Scenario& scenario, const Parallel& parallel,
                            const Cluster& cluster, const ForecastOptions& options) {
  WayForecast way;
  way.parallel = parallel;
  way.name = name_way(parallel);
  Scenario split = scenario;
  split.parallel = parallel;
  const Result<Forecast> forecast = forecast_windows(split, cluster, options);
  if (!forecast && forecast.error().kind != ErrorKind::refused) return forecast.error();
  if (!forecast) {
    way.refusal = forecast.error().complaints.front().what;
    return way;
  }
  const std::vector<WindowForecast>& windows = forecast.value().windows;
  const auto count = static_cast<double>(windows.size());
  std::vector<double> times;
  double most_balanced = 0;
  for (const WindowForecast& window : windows) {
    times.push_back(window.total_us());
    most_balanced += window.rank_max_over_mean / count;
    way.windows_too_large +=
        static_cast<double>(window.memory_bytes) > forecast.value().device_memory_gib * (1 << 30);
  }
  way.total_us = distribution_of(std::move(times));
  way.mean = mean_of_windows(windows);
  way.rank_max_over_mean = most_balanced;
  if (way.total_us.mean > 0) way.group_loss = way.mean.groups_us / way.total_us.mean;
  way.replicas = forecast.value().replicas.back();
  return way;
}

/// Possible ways first, by the mean time; of equal ones in the order of the list.
void sort_ways(DistributionForecast& list) {
  std::stable_sort(list.ways.begin(), list.ways.end(),
                   [](const WayForecast& a, const WayForecast& b) {
                     if (a.refusal.empty() != b.refusal.empty()) return a.refusal.empty();
                     return a.refusal.empty() && a.total_us.mean < b.total_us.mean;
                   });
  const auto best = std::find_if(list.ways.begin(), list.ways.end(),
                                 [](const WayForecast& way) { return way.can_be_best(); });
  if (best != list.ways.end()) list.best = best - list.ways.begin();
}

}  // namespace

std::vector<Parallel> list_ways_of_lengths(const Scenario& scenario, int64_t max_tokens_per_rank) {
  const Parallel& own = scenario.parallel;
  std::vector<Parallel> ways{own};
  const auto add = [&](const Parallel& way) {
    const auto is_it = [&](const Parallel& other) { return is_same_way(way, other); };
    if (std::none_of(ways.begin(), ways.end(), is_it)) ways.push_back(way);
  };
  Parallel grouped = own;
  grouped.group_rule = GroupRule::all_ranks;
  grouped.cp_sizes.clear();
  grouped.max_tokens_per_rank = max_tokens_per_rank;
  grouped.kv_replicated = 0;
  grouped.ring_backward = RingBackward::kv;
  if (!may_work_in_rounds(own.comm_type)) grouped.comm_type = CommType::p2p;
  if (!may_work_in_rounds(own.layout)) grouped.layout = LayoutKind::dual_chunk;
  add(grouped);
  for (int32_t size = 1; size < own.cp_size; size *= 2) {
    if (own.cp_size % size != 0) continue;
    Parallel fixed = grouped;
    fixed.group_rule = GroupRule::fixed;
    fixed.cp_sizes = {size};
    add(fixed);
  }
  for (const GroupRule rule : kGroupRules) {
    Parallel sized = grouped;
    sized.group_rule = rule;
    add(sized);
  }
  Parallel cast = grouped;
  cast.comm_type = CommType::group_cast;
  cast.layout = LayoutKind::lpt_local;
  cast.dispatch = Dispatch::tokens;
  add(cast);
  return ways;
}

Result<WaysForecast> forecast_ways(const Scenario& scenario, const Cluster& cluster,
                                   const ForecastOptions& options, bool has_published) {
  std::vector<Scenario> drawn;
  if (scenario.batch.generator && has_published) {
    for (const std::string_view name : kPublishedLengths) {
      drawn.push_back(scenario);
      drawn.back().batch.generator->name = name;
    }
  } else {
    drawn.push_back(scenario);
  }
  if (const auto error = refuse_forecast(drawn.front(), cluster, options)) return *error;
  WaysForecast result;
  result.cluster = cluster.name;
  result.stack = find_stack(cluster, options.stack).value()->name;
  result.scenario = scenario;
  result.windows = options.windows;
  result.replicas = replicas_of(options, scenario, cluster);
  result.microbatches = options.microbatches;
  result.is_usual_limit = scenario.parallel.max_tokens_per_rank == 0;
  result.max_tokens_per_rank =
      result.is_usual_limit ? usual_limit(scenario) : scenario.parallel.max_tokens_per_rank;
  const std::vector<Parallel> ways = list_ways_of_lengths(scenario, result.max_tokens_per_rank);
  const int64_t total = std::ssize(drawn) * std::ssize(ways) * options.windows;
  RunWatch watch(options.control, total);
  int64_t before = 0;
  ForecastOptions own = options;
  own.control.share = {};
  own.control.progress = [&](int64_t done, int64_t) { watch.reach(before + done); };
  for (const Scenario& one : drawn) {
    DistributionForecast list;
    list.generator = *one.batch.generator;
    for (const Parallel& parallel : ways) {
      Result<WayForecast> way = try_way(one, parallel, cluster, own);
      if (!way) return way.error();
      way.value().is_own = &parallel == &ways.front();
      list.ways.push_back(std::move(way).value());
      watch.reach(before += options.windows);
    }
    sort_ways(list);
    result.lists.push_back(std::move(list));
  }
  return result;
}

std::string explain_choice(const DistributionForecast& list) {
  if (list.best < 0)
    return "No way can be recommended: each is refused or needs more memory than a GPU has.";
  const WayForecast& best = list.ways[static_cast<size_t>(list.best)];
  std::string text =
      fmt::format("Take {}: {:.3f} ms a window", best.name, best.total_us.mean * 1e-3);
  if (best.group_loss > 0)
    text += fmt::format(", {:.0f} % of it waiting for the slowest group", 100 * best.group_loss);
  // Of each other kind of way the fastest one.
  using Kind = std::pair<GroupRule, bool>;
  const auto kind_of = [](const WayForecast& way) {
    return Kind(way.parallel.group_rule, way.parallel.comm_type == CommType::group_cast);
  };
  std::set<Kind> told{kind_of(best)};
  for (const WayForecast& other : list.ways) {
    if (!other.can_be_best() || !told.insert(kind_of(other)).second) continue;
    const double more = other.total_us.mean / best.total_us.mean - 1;
    if (more < kSameTime) {
      text += fmt::format("; {} is as fast", other.name);
      continue;
    }
    const std::string why =
        explain_slower(other.mean, best.mean, other.rank_max_over_mean > kEvenWork);
    text += fmt::format("; {} takes {:.0f} % longer{}{}", other.name, 100 * more,
                        why.empty() ? "" : ": ", why);
  }
  text += ".";
  const auto steady = std::min_element(
      list.ways.begin(), list.ways.end(), [](const WayForecast& a, const WayForecast& b) {
        if (a.can_be_best() != b.can_be_best()) return a.can_be_best();
        return a.can_be_best() && a.replicas.slowest_us < b.replicas.slowest_us;
      });
  if (steady->replicas.slowest_us < best.replicas.slowest_us)
    text += fmt::format(
        " A step of {} replicas is the fastest with {}: the slowest takes {:.3f} ms, with {} "
        "{:.3f} "
        "ms.",
        best.replicas.replicas, steady->name, steady->replicas.slowest_us * 1e-3, best.name,
        best.replicas.slowest_us * 1e-3);
  return text;
}

}  // namespace cpscope
