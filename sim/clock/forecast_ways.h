#pragma once

#include "sim/clock/forecast.h"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

/// One way to choose the ranks of each sequence, over the windows of a distribution of lengths.
struct WayForecast {
  Parallel parallel;
  std::string name;  // as in a comparison: "p2p, dual_chunk, fixed CP 8"
  std::string
      refusal;  // why a window cannot be planned; empty if all can, and then all below is set
  bool is_own = false;            // the scenario's own
  Distribution total_us;          // of a window, forward and backward
  MeanTimes mean;                 // of a window
  ReplicaForecast replicas;       // a step of all replicas
  double rank_max_over_mean = 1;  // the mean of the windows
  double group_loss = 0;  // cp_sizes: fraction of the time that groups wait for the slowest one
  int64_t windows_too_large = 0;  // that need more memory than a GPU has
  bool can_be_best() const { return refusal.empty() && windows_too_large == 0; }
};

struct DistributionForecast {
  Generator generator;
  std::vector<WayForecast> ways;  // possible ones first, by the mean time of a window
  int64_t best = -1;              // the fastest that fits; -1: none
};

struct WaysForecast {
  std::string cluster, stack;
  Scenario scenario;  // as given
  int64_t windows = 0, replicas = 0, microbatches = 1;
  int64_t max_tokens_per_rank = 0;          // of all ways
  bool is_usual_limit = false;              // the scenario gives none
  std::vector<DistributionForecast> lists;  // the scenario's own, or the published ones
};

/// Names of the generators that follow published lengths of documents.
inline constexpr std::array<std::string_view, 5> kPublishedLengths = {"prolong", "wlb", "byted",
                                                                      "wiki", "magi"};

/// The ways to compare for a distribution of lengths: all ranks for each sequence, one CP size N
/// for all (fixed CP N, the powers of two that divide cp_size), Megatron's hybrid scheduler,
/// FlexSP's and ByteScale's choice, each with the scenario's type and layout if these have rounds,
/// else p2p and dual_chunk; group_cast with lpt_local; and the scenario's own way.
std::vector<Parallel> list_ways_of_lengths(const Scenario& scenario, int64_t max_tokens_per_rank);

/// forecast_windows for each of these ways, with the same windows. `has_published`: for each of
/// kPublishedLengths, with the tokens, limits and seed of the scenario's generator, in place of
/// this. Without max_tokens_per_rank a rank may hold twice its share of a window. Errors: as
/// forecast_windows, but a way that cannot be planned is a refusal of its own.
Result<WaysForecast> forecast_ways(const Scenario& scenario, const Cluster& cluster,
                                   const ForecastOptions& options = {}, bool has_published = false);

/// The chosen way, and what others have more of: one or two sentences.
std::string explain_choice(const DistributionForecast& list);

}  // namespace cpscope
