// Arithmetic speed of the walker's tiles beside a plain matrix product on the same threads, and the
// cost of the oracle that judges them.

#include "reference/dense_oracle.h"
#include "reference/plan_walker.h"
#include "sim/base/parallel.h"
#include "tests/bench/bench_cases.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include <Eigen/Core>
#include <benchmark/benchmark.h>

namespace cpscope::bench {
namespace {

constexpr int kThreads = 2;
constexpr int64_t kProductSize = 1024;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// FLOP/s of Eigen's own product of 1024 x 1024 matrices, one on each thread.
double product_rate() {
  using Square = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  struct Operands {
    Square a, b, c;
  };
  std::vector<Operands> operands(kThreads);
  for (Operands& mine : operands) {
    mine.a.setRandom(kProductSize, kProductSize);
    mine.b.setRandom(kProductSize, kProductSize);
    mine.c.setZero(kProductSize, kProductSize);
  }
  constexpr int kRounds = 12;
  const auto start = std::chrono::steady_clock::now();
  for_each_index(
      kThreads,
      [&](int64_t thread) {
        Operands& mine = operands[static_cast<size_t>(thread)];
        for (int round = 0; round < kRounds; ++round) mine.c.noalias() += mine.a * mine.b;
      },
      kThreads);
  const double seconds = seconds_since(start);
  benchmark::DoNotOptimize(operands.front().c(0, 0));
  return 2.0 * kProductSize * kProductSize * kProductSize * kRounds * kThreads / seconds;
}

/// One timed run in manual time; the product is measured before and after it, because the machine
/// is shared.
void BM_WalkerTiles(benchmark::State& state) {
  const ReadyRun ready = prepare_run(walking_scenario(state.range(0), state.range(1) != 0));
  const std::unique_ptr<Executor> walker = reference::make_plan_walker();
  double best_ratio = 0, best_tiles = 0, best_product = 0, tile_share = 0;
  for (auto _ : state) {
    const double product_before = product_rate();
    const auto start = std::chrono::steady_clock::now();
    const Result<RunOutput> output = walker->run(ready.plan, ready.inputs, {false, kThreads, {}});
    const double seconds = seconds_since(start);
    state.SetIterationTime(seconds);
    const double product = std::max(product_before, product_rate());
    const double tiles = static_cast<double>(output.value().tile_flops) / seconds;
    best_tiles = std::max(best_tiles, tiles);
    best_product = std::max(best_product, product);
    best_ratio = std::max(best_ratio, tiles / product);
    tile_share = output.value().tile_seconds / (seconds * kThreads);
  }
  state.counters["tile_gflops"] = best_tiles / 1e9;
  state.counters["eigen_gflops"] = best_product / 1e9;
  state.counters["ratio"] = best_ratio;
  state.counters["in_tiles"] = tile_share;
}
BENCHMARK(BM_WalkerTiles)
    ->ArgNames({"tokens", "backward"})
    ->Args({8192, 0})
    ->Args({8192, 1})
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime()
    ->Iterations(1)
    ->Repetitions(5)
    ->ReportAggregatesOnly(false);

void BM_Oracle(benchmark::State& state) {
  const ReadyRun ready = prepare_run(walking_scenario(state.range(0), state.range(1) != 0));
  const Scenario& scenario = ready.plan.plan().scenario;
  for (auto _ : state) {
    const Verdict verdict = reference::judge(scenario, ready.inputs, {8, 8}, {});
    benchmark::DoNotOptimize(verdict.exact.out.values.data());
  }
  state.counters["pairs_per_s"] = benchmark::Counter(
      static_cast<double>(state.range(0) * (state.range(0) + 1) / 2 * scenario.attention.heads),
      benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_Oracle)
    ->ArgNames({"tokens", "backward"})
    ->Args({1024, 0})
    ->Args({1024, 1})
    ->Args({4096, 1})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace cpscope::bench
