#include "sim/base/parallel.h"
#include "sim/clock/forecast.h"
#include "sim/scenario/portable_random.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

// Random streams of the resampling, far from those that generators use for documents.
constexpr uint64_t kStepStream = 1'000;
constexpr uint64_t kBootstrapStream = 2'000;
constexpr uint64_t kBootstrapStepStream = 3'000;
constexpr int64_t kBootstraps = 32;
constexpr int64_t kDrawsAtOnce = 128;

double integer_power(double base, int64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent /= 2, base *= base) {
    if (exponent % 2 == 1) result *= base;
  }
  return result;
}

void add_share(const MeanTimes& times, double share, MeanTimes& sum) {
  sum.compute_us += share * times.compute_us;
  sum.local_us += share * times.local_us;
  sum.exposed_us += share * times.exposed_us;
  sum.idle_us += share * times.idle_us;
  sum.launch_us += share * times.launch_us;
  sum.partner_us += share * times.partner_us;
  sum.host_us += share * times.host_us;
  sum.groups_us += share * times.groups_us;
}

/// 1, 2, 4, ... and the last.
std::vector<int64_t> levels_to(int64_t replicas) {
  std::vector<int64_t> levels;
  for (int64_t level = 1; level < replicas; level *= 2) levels.push_back(level);
  levels.push_back(replicas);
  return levels;
}

/// Probability that the i-th smallest of `count` values (from 0) is the largest of `replicas`
/// draws.
std::vector<double> slowest_weights(size_t count, int64_t replicas) {
  std::vector<double> weights(count);
  double before = 0;
  for (size_t i = 0; i < count; ++i) {
    const double up_to =
        integer_power(static_cast<double>(i + 1) / static_cast<double>(count), replicas);
    weights[i] = up_to - before;
    before = up_to;
  }
  return weights;
}

/// Standard error of mean / E[max] from all samples without one value. `sorted` ascends; prefix
/// sums give each of them in constant time.
std::optional<double> jackknife_error(const std::vector<double>& sorted, int64_t replicas) {
  const size_t count = sorted.size();
  if (count < 3) return std::nullopt;
  const std::vector<double> weights = slowest_weights(count - 1, replicas);
  double above = 0, below = 0, sum = 0;
  for (size_t i = 1; i < count; ++i) above += sorted[i] * weights[i - 1];
  for (const double value : sorted) sum += value;
  std::vector<double> left_out(count);
  double mean = 0;
  for (size_t i = 0; i < count; ++i) {
    left_out[i] = (sum - sorted[i]) / static_cast<double>(count - 1) / (below + above);
    mean += left_out[i] / static_cast<double>(count);
    if (i + 1 == count) break;
    below += sorted[i] * weights[i];
    above -= sorted[i + 1] * weights[i];
  }
  double squares = 0;
  for (const double value : left_out) squares += (value - mean) * (value - mean);
  return std::sqrt(squares * static_cast<double>(count - 1) / static_cast<double>(count));
}

std::vector<ReplicaForecast> exact_replicas(std::span<const WindowForecast> windows,
                                            int64_t replicas) {
  std::vector<WindowForecast> sorted(windows.begin(), windows.end());
  std::stable_sort(
      sorted.begin(), sorted.end(),
      [](const WindowForecast& a, const WindowForecast& b) { return a.total_us() < b.total_us(); });
  std::vector<double> totals;
  double mean = 0;
  for (const WindowForecast& window : sorted) {
    totals.push_back(window.total_us());
    mean += window.total_us() / static_cast<double>(sorted.size());
  }
  std::vector<ReplicaForecast> result;
  for (const int64_t level : levels_to(replicas)) {
    ReplicaForecast step{.replicas = level};
    const std::vector<double> weights = slowest_weights(sorted.size(), level);
    for (size_t i = 0; i < sorted.size(); ++i) {
      step.slowest_us += weights[i] * totals[i];
      add_share(sorted[i].mean, weights[i], step.slowest);
    }
    step.efficiency = mean / step.slowest_us;
    step.efficiency_error = jackknife_error(totals, level);
    result.push_back(step);
  }
  return result;
}

/// Sums over drawn steps, by level of replicas.
struct StepSums {
  std::vector<double> slowest, squares;  // [level] minus the mean of a replica
  std::vector<MeanTimes> times;          // [level]
};

/// Draws steps of replicas from some of the windows.
struct StepSampler {
  std::span<const WindowForecast> windows;
  std::vector<size_t> choices;  // windows that may be drawn; with repetitions
  const ReplicaOptions& options;
  std::vector<int64_t> levels;
  uint64_t stream = 0;
  double mean_us = 0;  // of a replica's step

  StepSums draw(int64_t first, int64_t last) const {
    StepSums sums{std::vector<double>(levels.size()), std::vector<double>(levels.size()),
                  std::vector<MeanTimes>(levels.size())};
    std::vector<size_t> picks(static_cast<size_t>(options.microbatches)), slowest = picks;
    for (int64_t number = first; number < last; ++number) {
      auto counter = static_cast<uint64_t>(number * options.replicas * options.microbatches);
      double most = -1;
      size_t level = 0;
      for (int64_t replica = 1; replica <= options.replicas; ++replica) {
        double total = 0;
        for (size_t& pick : picks) {
          const double place =
              draw_unit(options.seed, stream, counter++) * static_cast<double>(choices.size());
          pick = choices[std::min(choices.size() - 1, static_cast<size_t>(place))];
          total += windows[pick].total_us();
        }
        if (total > most) {
          most = total;
          slowest.swap(picks);
        }
        if (replica != levels[level]) continue;
        sums.slowest[level] += most - mean_us;
        sums.squares[level] += (most - mean_us) * (most - mean_us);
        for (const size_t pick : slowest) add_share(windows[pick].mean, 1.0, sums.times[level]);
        ++level;
      }
    }
    return sums;
  }

  /// Draws this many steps on all cores, summed in a fixed order.
  StepSums draw_all(int64_t draws) const {
    const int64_t parts = (draws + kDrawsAtOnce - 1) / kDrawsAtOnce;
    std::vector<StepSums> found(static_cast<size_t>(parts));
    for_each_index(parts, [&](int64_t part) {
      found[static_cast<size_t>(part)] =
          draw(part * kDrawsAtOnce, std::min(draws, (part + 1) * kDrawsAtOnce));
    });
    StepSums sums = found.front();
    for (size_t part = 1; part < found.size(); ++part) {
      for (size_t level = 0; level < levels.size(); ++level) {
        sums.slowest[level] += found[part].slowest[level];
        sums.squares[level] += found[part].squares[level];
        add_share(found[part].times[level], 1.0, sums.times[level]);
      }
    }
    return sums;
  }
};

/// Mean and its squared standard error from the sums.
std::pair<double, double> mean_and_variance(double sum, double squares, int64_t count) {
  const auto n = static_cast<double>(count);
  const double mean = sum / n;
  return {mean, std::max(0.0, squares / n - mean * mean) / (n - 1)};
}

StepSampler sampler_of(std::span<const WindowForecast> windows, std::vector<size_t> choices,
                       const ReplicaOptions& options, uint64_t stream) {
  double mean = 0;
  for (const size_t choice : choices)
    mean += windows[choice].total_us() / static_cast<double>(choices.size());
  return {windows, std::move(choices),
          options, levels_to(options.replicas),
          stream,  mean * static_cast<double>(options.microbatches)};
}

/// Squared standard error of the efficiency by level: its variance between bootstrap samples of the
/// windows, minus the variance from the small number of steps drawn for each sample.
std::vector<double> bootstrap_variances(std::span<const WindowForecast> windows,
                                        const ReplicaOptions& options, int64_t draws) {
  const size_t levels = levels_to(options.replicas).size();
  std::vector<std::vector<double>> efficiency(kBootstraps, std::vector<double>(levels));
  std::vector<std::vector<double>> noise = efficiency;
  for_each_index(kBootstraps, [&](int64_t b) {
    const auto number = static_cast<uint64_t>(b);
    std::vector<size_t> choices(windows.size());
    for (size_t i = 0; i < choices.size(); ++i) {
      const double place = draw_unit(options.seed, kBootstrapStream + number, i) *
                           static_cast<double>(windows.size());
      choices[i] = std::min(windows.size() - 1, static_cast<size_t>(place));
    }
    const StepSampler sampler =
        sampler_of(windows, std::move(choices), options, kBootstrapStepStream + number);
    const StepSums sums = sampler.draw(0, draws);
    for (size_t level = 0; level < levels; ++level) {
      const auto [over, variance] =
          mean_and_variance(sums.slowest[level], sums.squares[level], draws);
      const double slowest = sampler.mean_us + over;
      efficiency[number][level] = sampler.mean_us / slowest;
      noise[number][level] =
          variance * efficiency[number][level] * efficiency[number][level] / (slowest * slowest);
    }
  });
  std::vector<double> variances(levels);
  for (size_t level = 0; level < levels; ++level) {
    double sum = 0, squares = 0, added = 0;
    for (size_t b = 0; b < efficiency.size(); ++b) {
      sum += efficiency[b][level];
      squares += efficiency[b][level] * efficiency[b][level];
      added += noise[b][level] / kBootstraps;
    }
    variances[level] =
        std::max(0.0, mean_and_variance(sum, squares, kBootstraps).second * kBootstraps - added);
  }
  return variances;
}

std::vector<ReplicaForecast> drawn_replicas(std::span<const WindowForecast> windows,
                                            const ReplicaOptions& options) {
  const int64_t draws = resample_draws(options);
  std::vector<size_t> all(windows.size());
  std::iota(all.begin(), all.end(), size_t{0});
  const StepSampler sampler = sampler_of(windows, std::move(all), options, kStepStream);
  const StepSums sums = sampler.draw_all(draws);
  const std::vector<double> variances =
      bootstrap_variances(windows, options, std::max<int64_t>(64, draws / 8));
  std::vector<ReplicaForecast> result;
  for (size_t level = 0; level < sampler.levels.size(); ++level) {
    ReplicaForecast step{.replicas = sampler.levels[level]};
    auto [over, variance] = mean_and_variance(sums.slowest[level], sums.squares[level], draws);
    // A single replica waits for no other: its mean is known.
    if (step.replicas == 1) over = variance = 0;
    step.slowest_us = sampler.mean_us + over;
    step.slowest_error_us = std::sqrt(variance);
    step.efficiency = sampler.mean_us / step.slowest_us;
    const double drawn = step.efficiency * step.slowest_error_us / step.slowest_us;
    if (windows.size() > 2)
      step.efficiency_error =
          step.replicas == 1 ? 0.0 : std::sqrt(variances[level] + drawn * drawn);
    if (step.replicas == 1) {
      add_share(mean_of_windows(windows), static_cast<double>(options.microbatches), step.slowest);
    } else {
      add_share(sums.times[level], 1.0 / static_cast<double>(draws), step.slowest);
    }
    result.push_back(step);
  }
  return result;
}

/// The times that are longer in the slowest replica, largest first.
std::string explain_more(const MeanTimes& slow, const MeanTimes& mean, double lost_us) {
  std::vector<std::pair<double, std::string>> parts = {
      {slow.compute_us - mean.compute_us, "attention"},
      {slow.local_us - mean.local_us, "merges and moves"},
      {slow.exposed_us - slow.partner_us - mean.exposed_us + mean.partner_us, "exposed transfers"},
      {slow.host_us - mean.host_us, "launches and host time"},
      {slow.waiting_us() - mean.waiting_us(), "waiting for its busiest rank"}};
  std::stable_sort(parts.begin(), parts.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text;
  for (const auto& [us, what] : parts) {
    if (us < 0.1 * lost_us) break;
    text += fmt::format("{}{:.3f} ms {}", text.empty() ? "" : ", ", us * 1e-3, what);
  }
  return text;
}

}  // namespace

MeanTimes mean_of_windows(std::span<const WindowForecast> windows) {
  MeanTimes mean;
  for (const WindowForecast& window : windows)
    add_share(window.mean, 1.0 / static_cast<double>(windows.size()), mean);
  return mean;
}

Distribution distribution_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto count = static_cast<double>(values.size());
  Distribution result;
  for (const double value : values) result.mean += value / count;
  double squares = 0;
  for (const double value : values) squares += (value - result.mean) * (value - result.mean);
  if (values.size() > 1) result.deviation = std::sqrt(squares / (count - 1));
  // Integer percent, so that 90 % of ten values is exactly nine.
  const auto quantile = [&](size_t percent) {
    return values[(values.size() * percent + 99) / 100 - 1];
  };
  result.least = values.front();
  result.median = quantile(50);
  result.percent_90 = quantile(90);
  result.percent_99 = quantile(99);
  result.most = values.back();
  return result;
}

int64_t resample_draws(const ReplicaOptions& options) {
  const int64_t windows = options.replicas * options.microbatches;
  return std::clamp((int64_t{1} << 22) / windows, int64_t{256}, int64_t{4'096});
}

std::vector<ReplicaForecast> forecast_replicas(std::span<const WindowForecast> windows,
                                               const ReplicaOptions& options) {
  return options.microbatches == 1 ? exact_replicas(windows, options.replicas)
                                   : drawn_replicas(windows, options);
}

std::string explain_loss(const Forecast& forecast) {
  const ReplicaForecast& last = forecast.replicas.back();
  MeanTimes mean = mean_of_windows(forecast.windows);
  MeanTimes step;
  add_share(mean, static_cast<double>(forecast.microbatches), step);
  const double usual_us = last.efficiency * last.slowest_us;
  const double lost_us = last.slowest_us - usual_us;
  std::vector<double> pairs;
  for (const WindowForecast& window : forecast.windows)
    pairs.push_back(static_cast<double>(window.visible_pairs));
  const Distribution work = distribution_of(pairs);
  std::string text;
  if (last.replicas == 1) {
    text = "A single replica does not wait";
  } else if (lost_us < 0.005 * last.slowest_us) {
    text = fmt::format(
        "{} replicas hardly wait for each other ({:.1f} % of a step): windows are "
        "alike",
        last.replicas, 100 * lost_us / last.slowest_us);
  } else {
    text = fmt::format(
        "{} replicas wait {:.1f} % of a step for the slowest of them, {:.3f} of {:.3f} ms, because "
        "windows differ (visible pairs by {:.0f} % of their mean, up to {:.2f} times it); what the "
        "slowest one does longer: {}",
        last.replicas, 100 * lost_us / last.slowest_us, lost_us * 1e-3, last.slowest_us * 1e-3,
        work.mean > 0 ? 100 * work.deviation / work.mean : 0.0,
        work.mean > 0 ? work.most / work.mean : 1.0, explain_more(last.slowest, step, lost_us));
  }
  const double total = mean.compute_us + mean.local_us + mean.exposed_us + mean.idle_us;
  return text + fmt::format(
                    ". Inside a window a rank waits {:.1f} % of the time: {:.1f} % for transfers, "
                    "{:.1f} % for launches and other ranks.",
                    100 * (mean.exposed_us + mean.idle_us) / total, 100 * mean.exposed_us / total,
                    100 * mean.idle_us / total);
}

}  // namespace cpscope
