#pragma once

#include "sim/clock/candidates.h"
#include "sim/clock/cluster.h"
#include "sim/base/run_control.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

/// One packed window: a batch drawn by the scenario's generator with its own seed, and the
/// predicted times of its attention, one layer.
struct WindowForecast {
  uint64_t seed = 0;          // of the generator
  int64_t sequences = 0;      // documents
  int64_t longest = 0;        // tokens of the longest one
  int64_t visible_pairs = 0;  // (query, key, query head) triples of the forward
  double forward_us = 0, backward_us = 0;
  MeanTimes mean;
  double rank_max_over_mean = 1, critical_path_over_ideal = 1;
  double padding_share = 0;
  int64_t memory_bytes = 0;  // high-water mark of the fullest rank

  double total_us() const { return forward_us + backward_us; }
};

/// A sample in seven numbers. The quantile p is the smallest value that at least a fraction p of
/// the sample does not exceed. The deviation divides by n - 1, and is 0 for one value.
struct Distribution {
  double mean = 0, deviation = 0, least = 0, median = 0, percent_90 = 0, percent_99 = 0, most = 0;
};

/// Expects one value or more.
Distribution distribution_of(std::vector<double> values);

/// A step of this many data-parallel replicas, each with windows of its own, which all wait for the
/// slowest one.
struct ReplicaForecast {
  int64_t replicas = 1;
  double slowest_us = 0;        // expected time of the slowest replica
  double slowest_error_us = 0;  // standard error of resampling; 0 where slowest_us is exact
  double efficiency = 1;        // expected time of any replica over that of the slowest
  // Standard error because the windows are a sample: jackknife over the windows, with several
  // microbatches a bootstrap. Nothing for fewer than three windows.
  std::optional<double> efficiency_error = {};
  MeanTimes slowest = {};  // times of the slowest replica by kind; sums to slowest_us
};

struct ReplicaOptions {
  int64_t replicas = 64;
  int64_t microbatches = 1;  // windows that a replica computes between two synchronisations
  uint64_t seed = 1;         // of the resampling
};

/// Steps of 1, 2, 4, ... and `replicas` replicas that draw windows from those given, each equally
/// likely, with replacement. One microbatch: exact, E[max of R] = sum of x_(i) ((i/N)^R -
/// ((i-1)/N)^R) over the order statistics (David & Nagaraja 2003, 2.1, of the empirical
/// distribution). Several: resample_draws() seeded steps. No replica is slower than the slowest sum
/// of windows given, so results are too good if there are far more replicas than windows. Cost:
/// O(levels N log N), or 5 replicas microbatches draws.
std::vector<ReplicaForecast> forecast_replicas(std::span<const WindowForecast> windows,
                                               const ReplicaOptions& options);

/// Times of a window by kind, the mean of the windows.
MeanTimes mean_of_windows(std::span<const WindowForecast> windows);

/// Number of steps drawn for several microbatches: 2^22 windows in total, 256 to 4096 steps.
int64_t resample_draws(const ReplicaOptions& options);

/// Limit of replicas times microbatches.
inline constexpr int64_t kMaxDrawnWindows = int64_t{1} << 18;
/// Default number of replicas, unless the cluster holds fewer.
inline constexpr int64_t kUsualReplicas = 64;

struct ForecastOptions {
  std::string_view stack = {};
  int64_t windows = 256;
  int64_t replicas = 0;  // 0: kUsualReplicas, or fewer if the cluster has no room for them
  int64_t microbatches = 1;
  std::optional<uint64_t> first_seed = {};  // of the windows, counted up; default: the generator's
  int64_t memory_bytes = 0;                 // limit for plans; 0: 9/10 of the machine's
  RunControl control = {};
};

struct Forecast {
  std::string cluster, stack;
  double device_memory_gib = 0;
  Scenario scenario;  // as given
  int64_t microbatches = 1;
  int64_t draws = 0;  // 0: exact
  std::vector<WindowForecast> windows;
  std::vector<ReplicaForecast> replicas;  // 1, 2, 4, ...
};

/// Draws the windows, plans and predicts each, on all cores (fewer if the plans would not fit in
/// memory together), and predicts how long replicas wait for each other. The result is the same for
/// any number of threads. Plans are not proved here. Errors: refused (a batch or an order that does
/// not depend on a seed, more ranks than GPUs, a plan that does not fit in memory, a window that
/// cannot be planned: the first one), otherwise as predict, cancelled.
Result<Forecast> forecast_windows(const Scenario& scenario, const Cluster& cluster,
                                  const ForecastOptions& options = {});

/// The error that every window would have; nothing if they may be drawn.
std::optional<Error> refuse_forecast(const Scenario& scenario, const Cluster& cluster,
                                     const ForecastOptions& options);

/// The replicas of a step: as many as asked for, or kUsualReplicas, or as many as fit.
int64_t replicas_of(const ForecastOptions& options, const Scenario& scenario,
                    const Cluster& cluster);

/// One or two sentences: the loss of replicas that wait for the slowest, which times are longer in
/// that one, and the fraction of a window spent waiting.
std::string explain_loss(const Forecast& forecast);

}  // namespace cpscope
