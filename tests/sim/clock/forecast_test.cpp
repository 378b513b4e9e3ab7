#include "sim/clock/forecast.h"

#include "sim/scenario/portable_random.h"
#include "sim/scenario/scenario_file.h"

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope {
namespace {

/// Windows with these times, all of it attention.
std::vector<WindowForecast> windows_of(const std::vector<double>& times) {
  std::vector<WindowForecast> windows(times.size());
  for (size_t i = 0; i < times.size(); ++i) {
    windows[i].forward_us = windows[i].mean.compute_us = times[i];
    windows[i].visible_pairs = 100;
  }
  return windows;
}

std::vector<double> uniform_times(size_t count) {
  std::vector<double> times(count);
  for (size_t i = 0; i < count; ++i) times[i] = draw_unit(5, 0, i);
  return times;
}

Scenario scenario_of_batch(const std::string& batch, const std::string& parallel = "cp_size = 4",
                           const std::string& mask = "padding_causal") {
  const Result<LoadedScenario> loaded =
      parse_scenario(fmt::format("schema = 1\n[attention]\nheads = 4\nkv_heads = 2\nhead_dim = 64\n"
                                 "attn_mask_type = \"{}\"\n[batch]\n{}\n[parallel]\n{}\n",
                                 mask, batch, parallel),
                     "t.toml");
  EXPECT_TRUE(loaded.ok()) << (loaded ? "" : to_text(loaded.error()));
  return loaded.value().scenario;
}

const std::string kDrawn = "generator = { name = \"wlb\", tokens = 8192, max = 8192, seed = 7 }";

Cluster cluster_of(const std::string& name) { return load_cluster(name, CPSCOPE_CLUSTERS).value(); }

std::string refusal_of(const Scenario& scenario, const ForecastOptions& options = {.windows = 2}) {
  const Result<Forecast> forecast = forecast_windows(scenario, cluster_of("h200x8"), options);
  return forecast ? "none" : to_text(forecast.error());
}

TEST(ReplicaForecasts, LoseNothingWhenAllWindowsAreEqual) {
  for (const int64_t microbatches : {1, 3}) {
    for (const ReplicaForecast& step :
         forecast_replicas(windows_of(std::vector<double>(50, 12.5)),
                           {.replicas = 20, .microbatches = microbatches})) {
      EXPECT_NEAR(step.efficiency, 1.0, 1e-12) << step.replicas;
      EXPECT_NEAR(step.slowest_us, 12.5 * static_cast<double>(microbatches), 1e-9);
      EXPECT_NEAR(step.efficiency_error.value(), 0.0, 1e-12);
    }
  }
}

TEST(ReplicaForecasts, FollowTheClosedFormOfTwoPoints) {
  // One window in five takes 4, the others 1: the slowest of R takes 4 - 3 * 0.8^R.
  const auto windows = windows_of({1, 4, 1, 1, 1});
  const auto steps = forecast_replicas(windows, {.replicas = 48});
  ASSERT_EQ(steps.size(), 7U) << "1, 2, 4, 8, 16, 32 and 48";
  EXPECT_EQ(steps.back().replicas, 48);
  for (const ReplicaForecast& step : steps) {
    const double slowest = 4 - 3 * std::pow(0.8, static_cast<double>(step.replicas));
    EXPECT_NEAR(step.slowest_us, slowest, 1e-12) << step.replicas;
    EXPECT_NEAR(step.efficiency, 1.6 / slowest, 1e-12) << step.replicas;
    EXPECT_NEAR(step.slowest.compute_us, slowest, 1e-12) << "all of it is attention";
    EXPECT_EQ(step.slowest_error_us, 0);
  }
}

TEST(ReplicaForecasts, FollowTheClosedFormOfTwoMicrobatchesOfTwoPoints) {
  // Half of the windows take 0, half 2: a sum of two is 0, 2, 4 with 1/4, 1/2, 1/4.
  const auto steps = forecast_replicas(windows_of({0, 2}), {.replicas = 8, .microbatches = 2});
  ASSERT_EQ(steps.size(), 4U);
  for (const ReplicaForecast& step : steps) {
    const auto count = static_cast<double>(step.replicas);
    const double slowest = 4 - 2 * std::pow(0.75, count) - 2 * std::pow(0.25, count);
    EXPECT_NEAR(step.slowest_us, slowest, 4 * step.slowest_error_us + 1e-12) << step.replicas;
    EXPECT_LT(step.slowest_error_us, 0.01 * slowest);
    EXPECT_GT(step.slowest_error_us, step.replicas == 1 ? -1 : 0.001);
    EXPECT_NEAR(step.slowest.compute_us, step.slowest_us, 1e-9);
  }
}

TEST(ReplicaForecasts, FollowTheClosedFormOfUniformTimes) {
  // The slowest of R uniform ones takes R / (R + 1); the reported errors say how close 4000 windows
  // come.
  for (const ReplicaForecast& step :
       forecast_replicas(windows_of(uniform_times(4000)), {.replicas = 64})) {
    const auto count = static_cast<double>(step.replicas);
    const double efficiency = 0.5 * (count + 1) / count;
    EXPECT_NEAR(step.efficiency, efficiency, 4 * step.efficiency_error.value() + 1e-12);
    EXPECT_LT(step.efficiency_error.value(), 0.02) << step.replicas;
  }
}

/// The true spread of the efficiency of two replicas between different sets of windows.
double spread_of_efficiency(int64_t microbatches, double& said) {
  constexpr size_t kSets = 40, kWindows = 50;
  double sum = 0, squares = 0;
  said = 0;
  const std::vector<double> times = uniform_times(kSets * kWindows);
  for (size_t set = 0; set < kSets; ++set) {
    const auto first = times.begin() + static_cast<std::ptrdiff_t>(set * kWindows);
    const ReplicaForecast step = forecast_replicas(windows_of({first, first + kWindows}),
                                                   {.replicas = 2, .microbatches = microbatches})
                                     .back();
    sum += step.efficiency;
    squares += step.efficiency * step.efficiency;
    said += step.efficiency_error.value() / kSets;
  }
  return std::sqrt((squares - sum * sum / kSets) / (kSets - 1));
}

TEST(ReplicaForecasts, SayHowMuchOtherWindowsWouldChangeThem) {
  for (const int64_t microbatches : {1, 2}) {
    double said = 0;
    const double seen = spread_of_efficiency(microbatches, said);
    EXPECT_NEAR(said / seen, 1.0, 0.35) << microbatches << ": " << said << " " << seen;
  }
  // With two windows each jackknife sample has one window, in which no replica waits.
  for (const int64_t microbatches : {1, 2}) {
    for (const std::vector<double>& times : {std::vector<double>{3}, std::vector<double>{3, 5}}) {
      const ReplicaOptions options{.replicas = 4, .microbatches = microbatches};
      EXPECT_FALSE(forecast_replicas(windows_of(times), options).back().efficiency_error);
    }
  }
}

TEST(ReplicaForecasts, FallWithEveryReplicaAndLessWithMicrobatches) {
  const auto windows = windows_of(uniform_times(100));
  double last = 0;
  for (const int64_t microbatches : {1, 4}) {
    const auto steps = forecast_replicas(windows, {.replicas = 16, .microbatches = microbatches});
    for (size_t i = 1; i < steps.size(); ++i) {
      EXPECT_GT(steps[i].slowest_us, steps[i - 1].slowest_us) << microbatches;
      EXPECT_LT(steps[i].efficiency, steps[i - 1].efficiency) << microbatches;
    }
    EXPECT_GT(steps.back().efficiency, last) << "sums of windows differ less";
    last = steps.back().efficiency;
  }
}

TEST(Distributions, HoldQuantilesThatTheSampleHas) {
  const Distribution ten = distribution_of({10, 9, 8, 7, 6, 5, 4, 3, 2, 1});
  EXPECT_EQ(ten.mean, 5.5);
  EXPECT_NEAR(ten.deviation, std::sqrt(82.5 / 9), 1e-12);
  EXPECT_EQ(ten.least, 1);
  EXPECT_EQ(ten.median, 5);
  EXPECT_EQ(ten.percent_90, 9);
  EXPECT_EQ(ten.percent_99, 10);
  EXPECT_EQ(ten.most, 10);
  const Distribution one = distribution_of({3});
  EXPECT_EQ(one.median, 3);
  EXPECT_EQ(one.deviation, 0);
}

TEST(Forecasts, AreTheSameForAnyNumberOfThreadsAndFollowTheSeed) {
  const Scenario scenario = scenario_of_batch(kDrawn);
  const auto forecast_with = [&](const char* threads, std::optional<uint64_t> seed) {
    setenv("CPSCOPE_THREADS", threads, 1);
    Result<Forecast> forecast =
        forecast_windows(scenario, cluster_of("h200_ib"),
                         {.windows = 6, .replicas = 4, .microbatches = 2, .first_seed = seed});
    unsetenv("CPSCOPE_THREADS");
    return forecast.value();
  };
  const Forecast alone = forecast_with("1", std::nullopt), together = forecast_with("5", 7);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(alone.windows[i].seed, 7 + i);
    EXPECT_EQ(alone.windows[i].total_us(), together.windows[i].total_us()) << i;
  }
  EXPECT_EQ(alone.replicas.back().slowest_us, together.replicas.back().slowest_us);
  EXPECT_EQ(alone.replicas.back().efficiency_error, together.replicas.back().efficiency_error);
  // The seed moves the sample along the same sequence of windows.
  const Forecast later = forecast_with("2", 9);
  EXPECT_EQ(later.windows[0].total_us(), alone.windows[2].total_us());
  EXPECT_NE(later.windows[1].total_us(), later.windows[0].total_us());
}

TEST(Forecasts, TellOfEachWindowWhatComparisonsTellOfIt) {
  Scenario scenario = scenario_of_batch(kDrawn);
  const Cluster cluster = cluster_of("h200x8");
  const Forecast forecast =
      forecast_windows(scenario, cluster, {.windows = 1, .first_seed = 7}).value();
  const Candidates comparison = compare_candidates(scenario, cluster).value();
  const Candidate& own = comparison.candidates[static_cast<size_t>(comparison.own)];
  const WindowForecast& window = forecast.windows.front();
  EXPECT_EQ(window.forward_us, own.forward_us);
  EXPECT_EQ(window.backward_us, own.backward_us);
  EXPECT_EQ(window.mean.exposed_us, own.mean.exposed_us);
  EXPECT_EQ(window.rank_max_over_mean, own.rank_max_over_mean);
  EXPECT_EQ(window.memory_bytes, own.memory_bytes);
  EXPECT_EQ(window.sequences, static_cast<int64_t>(scenario.batch.lengths.size()));
  // Eight GPUs hold two replicas of four ranks; with one window no replica waits.
  ASSERT_EQ(forecast.replicas.size(), 2U);
  EXPECT_NEAR(forecast.replicas.back().efficiency, 1.0, 1e-12);
  EXPECT_NE(explain_loss(forecast).find("hardly wait"), std::string::npos);
}

TEST(Forecasts, SayWhatTheSlowestReplicaDoesLonger) {
  Forecast forecast;
  forecast.windows = windows_of({1000, 3000});
  forecast.windows[1].mean = {1500, 0, 1500, 0};
  forecast.windows[1].visible_pairs = 300;
  forecast.replicas = forecast_replicas(forecast.windows, {.replicas = 2});
  EXPECT_EQ(
      explain_loss(forecast),
      "2 replicas wait 20.0 % of a step for the slowest of them, 0.500 of 2.500 ms, because "
      "windows differ (visible pairs by 71 % of their mean, up to 1.50 times it); what the "
      "slowest one does longer: 0.375 ms exposed transfers, 0.125 ms attention. Inside a window a "
      "rank waits 37.5 % of the time: 37.5 % for transfers, 0.0 % for launches and other "
      "ranks.");
}

TEST(Forecasts, RefuseByNameWhatNoSeedChanges) {
  EXPECT_NE(
      refusal_of(scenario_of_batch("lengths = [512, 100]")).find("the batch has fixed lengths"),
      std::string::npos);
  EXPECT_NE(refusal_of(scenario_of_batch("qkv_format = \"bshd\"\nseqlen = 9000\n" + kDrawn))
                .find("the batch fixes slots or kv_lengths"),
            std::string::npos);
  Scenario scenario = scenario_of_batch(kDrawn);
  scenario.batch.generator->name = "csv";
  EXPECT_NE(refusal_of(scenario).find("no seed changes the lengths of generator csv"),
            std::string::npos);
  scenario = scenario_of_batch(kDrawn);
  scenario.parallel.layout = LayoutKind::indices;
  EXPECT_NE(refusal_of(scenario).find("an imported order is of one batch"), std::string::npos);
  scenario = scenario_of_batch(kDrawn);
  scenario.attention.mask_type = MaskType::slices;
  EXPECT_NE(refusal_of(scenario).find("mask slices name tokens of one batch"), std::string::npos);
}

TEST(Forecasts, RefuseWhatDoesNotFit) {
  const Scenario scenario = scenario_of_batch(kDrawn);
  const std::string gpus = refusal_of(scenario, {.windows = 2, .replicas = 3});
  EXPECT_NE(gpus.find("h200x8 has 8 GPUs, replicas of the scenario want 12: 4 ranks x 3"),
            std::string::npos)
      << gpus;
  EXPECT_NE(refusal_of(scenario, {.windows = 2, .memory_bytes = 1000}).find("0.0 GiB"),
            std::string::npos);
  EXPECT_EQ(refusal_of(scenario, {.windows = 2, .memory_bytes = int64_t{1} << 24}), "none");
  const uint64_t last = (uint64_t{1} << 63) - 1;
  EXPECT_NE(refusal_of(scenario, {.windows = 2, .first_seed = last}).find("pass the limit"),
            std::string::npos);
}

TEST(Forecasts, NameTheFirstWindowThatCannotBe) {
  // A seed whose documents happen to have even lengths fits without padding, most do not.
  const Scenario scenario = scenario_of_batch(
      "pad_between_seqs = false\n"
      "generator = { name = \"uniform\", tokens = 512, min = 8, max = 512, seed = 1 }");
  const std::string first = refusal_of(scenario, {.windows = 8});
  EXPECT_NE(first.find("(window of generator.seed "), std::string::npos) << first;
  setenv("CPSCOPE_THREADS", "4", 1);
  EXPECT_EQ(refusal_of(scenario, {.windows = 8}), first);
  unsetenv("CPSCOPE_THREADS");
}

TEST(Forecasts, StopWhenTheyAreToldTo) {
  std::atomic<int> asked = 0;
  const Result<Forecast> forecast =
      forecast_windows(scenario_of_batch(kDrawn), cluster_of("h200x8"),
                       {.windows = 100, .control = {.is_cancelled = [&] { return ++asked > 3; }}});
  ASSERT_FALSE(forecast.ok());
  EXPECT_EQ(forecast.error().kind, ErrorKind::unavailable);
  EXPECT_NE(to_text(forecast.error()).find("the forecast was cancelled"), std::string::npos);
}

}  // namespace
}  // namespace cpscope
