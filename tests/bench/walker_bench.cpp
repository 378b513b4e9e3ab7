// Arithmetic speed of the walker's tiles beside a plain matrix product on the same threads, and the
// cost of the oracle that judges them.

#include "reference/dense_oracle.h"
#include "reference/plan_walker.h"
#include "sim/base/parallel.h"
#include "tests/bench/bench_cases.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <memory>
#include <vector>

#include <Eigen/Core>
#include <benchmark/benchmark.h>

namespace cpscope::bench {
namespace {

constexpr int kThreads = 2;
constexpr int64_t kProductSize = 1024;

/// Wall time and the processor time of all threads since it was made.
class Stopwatch {
 public:
  double wall_seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - wall_start_).count();
  }
  double processor_seconds() const {
    return static_cast<double>(std::clock() - processor_start_) / CLOCKS_PER_SEC;
  }

 private:
  std::chrono::steady_clock::time_point wall_start_ = std::chrono::steady_clock::now();
  std::clock_t processor_start_ = std::clock();
};

/// FLOP/s in wall time, and what one thread does in a second of its own.
struct Rate {
  double wall = 0;
  double thread = 0;

  void keep_best(const Rate& other) {
    wall = std::max(wall, other.wall);
    thread = std::max(thread, other.thread);
  }
};

/// Eigen's own product of 1024 x 1024 matrices, one on each thread.
Rate product_rate() {
  using Square = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  struct Operands {
    Square a, b, c;
  };
  std::vector<Operands> operands(kThreads);
  for (Operands& mine : operands) {
    mine.a.setConstant(kProductSize, kProductSize, 0.5f);
    mine.b.setConstant(kProductSize, kProductSize, 0.25f);
    mine.c.setZero(kProductSize, kProductSize);
  }
  constexpr int kRounds = 12;
  const Stopwatch watch;
  for_each_index(
      kThreads,
      [&](int64_t thread) {
        Operands& mine = operands[static_cast<size_t>(thread)];
        for (int round = 0; round < kRounds; ++round) mine.c.noalias() += mine.a * mine.b;
      },
      kThreads);
  const double flops = 2.0 * kProductSize * kProductSize * kProductSize * kRounds * kThreads;
  const Rate rate{flops / watch.wall_seconds(), flops / watch.processor_seconds()};
  benchmark::DoNotOptimize(operands.front().c(0, 0));
  return rate;
}

/// Manual time is the walker's wall time. The product is measured before and after each run,
/// because a machine may be shared; `ratio` compares wall times, `thread_ratio` the work in a
/// second of processor time, which others cannot take away.
void BM_WalkerTiles(benchmark::State& state) {
  const Dtype dtype = static_cast<Dtype>(state.range(2));
  const ReadyRun ready = prepare_run(walking_scenario(state.range(0), state.range(1) != 0, dtype));
  const std::unique_ptr<Executor> walker = reference::make_plan_walker();
  Rate tiles, product;
  double ratio = 0, thread_ratio = 0, tile_share = 0;
  for (auto _ : state) {
    Rate product_now = product_rate();
    const Stopwatch watch;
    const Result<RunOutput> output = walker->run(ready.plan, ready.inputs, {false, kThreads, {}});
    const double seconds = watch.wall_seconds(), processor = watch.processor_seconds();
    state.SetIterationTime(seconds);
    product_now.keep_best(product_rate());
    const double flops = static_cast<double>(output.value().tile_flops);
    const Rate tiles_now{flops / seconds, flops / processor};
    ratio = std::max(ratio, tiles_now.wall / product_now.wall);
    thread_ratio = std::max(thread_ratio, tiles_now.thread / product_now.thread);
    tile_share = output.value().tile_seconds / (seconds * kThreads);
    tiles.keep_best(tiles_now);
    product.keep_best(product_now);
  }
  state.counters["tile_gflops"] = tiles.wall / 1e9;
  state.counters["eigen_gflops"] = product.wall / 1e9;
  state.counters["ratio"] = ratio;
  state.counters["thread_ratio"] = thread_ratio;
  state.counters["in_tiles"] = tile_share;
}
BENCHMARK(BM_WalkerTiles)
    ->ArgNames({"tokens", "backward", "dtype"})
    ->Args({8192, 0, static_cast<int64_t>(Dtype::fp32)})
    ->Args({8192, 1, static_cast<int64_t>(Dtype::fp32)})
    ->Args({8192, 1, static_cast<int64_t>(Dtype::bf16)})
    ->Args({8192, 1, static_cast<int64_t>(Dtype::fp16)})
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime()
    ->Iterations(1)
    ->Repetitions(5)
    ->DisplayAggregatesOnly(false);

void BM_Oracle(benchmark::State& state) {
  const ReadyRun ready =
      prepare_run(walking_scenario(state.range(0), state.range(1) != 0, Dtype::fp32));
  const Scenario& scenario = ready.plan.plan().scenario;
  for (auto _ : state) {
    const Verdict verdict = reference::judge(scenario, ready.inputs, {8, 8}, {}).value();
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
