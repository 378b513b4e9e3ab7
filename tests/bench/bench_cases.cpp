#include "tests/bench/bench_cases.h"

#include "sim/plan/planner/planner.h"
#include "sim/run/run_inputs.h"
#include "sim/scenario/generator.h"

#include <utility>
#include <vector>

namespace cpscope::bench {
namespace {

/// Lengths between a third and five thirds of the mean, from a counter.
std::vector<int64_t> uneven_lengths(int64_t tokens, int64_t documents) {
  std::vector<int64_t> lengths;
  int64_t left = tokens;
  for (int64_t d = 0; d + 1 < documents; ++d) {
    const int64_t mean = left / (documents - d);
    const int64_t length = mean / 3 + (d * 2'654'435'761 % 1'000) * (mean * 4 / 3) / 1'000;
    lengths.push_back(length);
    left -= length;
  }
  lengths.push_back(left);
  return lengths;
}

std::vector<int64_t> published_lengths(const PlanSize& size) {
  Generator generator;
  generator.name = size.generator;
  generator.tokens = size.tokens;
  return generate_lengths(generator, "").value();
}

Scenario causal_scenario(std::vector<int64_t> lengths, int32_t ranks) {
  Scenario scenario;
  scenario.attention.heads = 8;
  scenario.attention.kv_heads = 8;
  scenario.attention.head_dim_qk = 128;
  scenario.attention.head_dim_v = 128;
  scenario.batch.lengths = lengths;
  scenario.batch.kv_lengths = lengths;
  scenario.batch.slots = lengths;
  scenario.batch.kv_slots = std::move(lengths);
  scenario.parallel.cp_size = ranks;
  return scenario;
}

}  // namespace

Scenario planning_scenario(const PlanSize& size) {
  Scenario scenario =
      causal_scenario(size.generator.empty() ? uneven_lengths(size.tokens, size.documents)
                                             : published_lengths(size),
                      size.ranks);
  scenario.parallel.layout = size.layout;
  scenario.parallel.comm_type = size.comm_type;
  return scenario;
}

Scenario walking_scenario(int64_t tokens, bool backward, Dtype dtype) {
  Scenario scenario = causal_scenario({tokens}, 8);
  scenario.numerics.dtype = dtype;
  scenario.numerics.backward = backward;
  return scenario;
}

ReadyRun prepare_run(const Scenario& scenario) {
  CheckedPlan plan = check_plan(make_plan(scenario).value()).value();
  RunInputs inputs = make_run_inputs(plan.plan(), false);
  return {std::move(plan), std::move(inputs)};
}

}  // namespace cpscope::bench
