// What the window waits for: a plan after an edit, and what a selection touches.

#include "gui/app/document/document.h"
#include "gui/model/project.h"
#include "sim/scenario/scenario_file.h"
#include "tests/bench/bench_cases.h"

#include <string>

#include <benchmark/benchmark.h>

namespace cpscope::bench {
namespace {

/// From an edit to the plan that views look at: print, parse, plan, prove, index.
void BM_Replan(benchmark::State& state, const PlanSize& size) {
  gui::Document document;
  const Scenario scenario = planning_scenario(size);
  if (document.load_text(print_scenario(scenario), "")) return state.SkipWithError("refused");
  document.wait();
  uint64_t seed = 1;
  for (auto _ : state) {
    Scenario next = document.scenario();
    next.numerics.seed = ++seed;
    document.edit(std::move(next), "numerics.seed");
    document.wait();
    if (!document.is_current()) return state.SkipWithError("refused");
  }
}

gui::SharedPlan index_of(const PlanSize& size) {
  gui::TaskControl control;
  return gui::plan_and_prove(planning_scenario(size), "", "", control).value();
}

void BM_Project(benchmark::State& state, const gui::SharedPlan& plan, const gui::Target& target) {
  for (auto _ : state) benchmark::DoNotOptimize(gui::project(target, *plan).items.size());
}

BENCHMARK_CAPTURE(BM_Replan, 128K_x64, PlanSize{131'072, 1, 64})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(BM_Replan, 4K_x8, PlanSize{4096, 4, 8})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

void BM_ProjectMillion(benchmark::State& state, const gui::Target& target) {
  static const gui::SharedPlan plan = index_of({1'048'576, 1, 1024});
  BM_Project(state, plan, target);
}

BENCHMARK_CAPTURE(BM_ProjectMillion, chunk, gui::TokenRange{Side::q, 4096, 4608})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_ProjectMillion, all_tokens, gui::TokenRange{Side::q, 0, 1'048'576})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_ProjectMillion, half, gui::TokenRange{Side::q, 100, 524'288})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_ProjectMillion, rank, gui::RankTarget{77})->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_ProjectMillion, link, gui::LinkTarget{7, 8})->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_ProjectMillion, pairs, gui::PairRange{5000, 9000, 100, 2000})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_ProjectMillion, step, gui::StepTarget{511})->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace cpscope::bench
