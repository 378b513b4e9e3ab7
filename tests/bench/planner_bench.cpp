// Time to plan, and to plan and prove, as tokens, documents and ranks grow.

#include "sim/plan/check/plan_check.h"
#include "sim/plan/layout.h"
#include "sim/plan/planner/planner.h"
#include "tests/bench/bench_cases.h"

#include <string>
#include <utility>

#include <benchmark/benchmark.h>

namespace cpscope::bench {
namespace {

void report_size(benchmark::State& state, const Plan& plan) {
  state.counters["computes"] = static_cast<double>(plan.forward.computes.size());
  state.counters["slices"] = static_cast<double>(plan.slices.size());
  state.counters["transfers"] =
      static_cast<double>(plan.forward.transfers.size() + plan.backward.transfers.size());
}

void BM_Plan(benchmark::State& state, const PlanSize& size) {
  const Scenario scenario = planning_scenario(size);
  for (auto _ : state) {
    Result<Plan> plan = make_plan(scenario);
    if (!plan) return state.SkipWithError(to_text(plan.error()).c_str());
    benchmark::DoNotOptimize(plan.value().hash);
    state.PauseTiming();
    report_size(state, plan.value());
    state.ResumeTiming();
  }
}

void BM_Layout(benchmark::State& state, const PlanSize& size) {
  const Scenario scenario = planning_scenario(size);
  for (auto _ : state) {
    const Result<Layout> layout = make_layout(scenario);
    if (!layout) return state.SkipWithError(to_text(layout.error()).c_str());
    benchmark::DoNotOptimize(layout.value().q_runs.values().data());
  }
}

void BM_PlanAndProve(benchmark::State& state, const PlanSize& size) {
  const Scenario scenario = planning_scenario(size);
  for (auto _ : state) {
    Result<Plan> plan = make_plan(scenario);
    if (!plan) return state.SkipWithError(to_text(plan.error()).c_str());
    const Result<CheckedPlan> checked = check_plan(std::move(plan).value());
    if (!checked) return state.SkipWithError(to_text(checked.error()).c_str());
    benchmark::DoNotOptimize(checked.value().plan().hash);
  }
}

void add_case(const std::string& name, const PlanSize& size) {
  benchmark::RegisterBenchmark(("BM_Plan/" + name).c_str(), BM_Plan, size)
      ->Unit(benchmark::kMillisecond)
      ->UseRealTime();
  benchmark::RegisterBenchmark(("BM_PlanAndProve/" + name).c_str(), BM_PlanAndProve, size)
      ->Unit(benchmark::kMillisecond)
      ->UseRealTime();
}

constexpr int64_t kThousand = 1024;
constexpr int64_t kMillion = 1'048'576;

/// Cases that people meet: a long context, packed documents, a thousand ranks.
bool register_cases() {
  add_case("128K_x64/one_sequence", {128 * kThousand, 1, 64});
  add_case("128K_x64/200_documents", {128 * kThousand, 200, 64});
  add_case("1M_x1024/dual_chunk", {kMillion, 1, 1024});
  add_case("1M_x1024/striped", {kMillion, 1, 1024, LayoutKind::striped});
  add_case("1M_x1024/dual_chunk_packed_512_documents",
           {kMillion, 512, 1024, LayoutKind::dual_chunk_packed});
  add_case("1M_x1024/lpt_512_documents",
           {kMillion, 512, 1024, LayoutKind::lpt, CommType::group_cast});
  for (const LayoutKind layout : {LayoutKind::lpt, LayoutKind::lpt_local})
    add_case("512K_x64/" + std::string(to_name(layout)) + "_64_documents",
             {512 * kThousand, 64, 64, layout, CommType::group_cast});
  for (const char* name : {"wlb", "prolong", "wiki"}) {
    benchmark::RegisterBenchmark(
        (std::string("BM_Layout/512K_x64/lpt_local_") + name).c_str(), BM_Layout,
        PlanSize{512 * kThousand, 0, 64, LayoutKind::lpt_local, CommType::group_cast, name})
        ->Unit(benchmark::kMillisecond);
  }
  add_case("1M_x64/dual_chunk_512_documents", {kMillion, 512, 64});
  // One quantity at a time.
  for (const int64_t tokens : {32 * kThousand, 128 * kThousand, 512 * kThousand, 2 * kMillion})
    add_case("tokens/" + std::to_string(tokens), {tokens, 64, 64});
  for (const int64_t documents : {16, 64, 256, 1024})
    add_case("documents/" + std::to_string(documents), {128 * kThousand, documents, 16});
  for (const int32_t ranks : {8, 32, 128, 512})
    add_case("ranks/" + std::to_string(ranks), {128 * kThousand, 16, ranks});
  return true;
}

const bool kCasesAreRegistered = register_cases();

}  // namespace
}  // namespace cpscope::bench
