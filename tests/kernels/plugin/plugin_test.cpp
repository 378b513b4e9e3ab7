// Kernels from plugins: the example in C is correct for all cases, and each wrong plugin is
// rejected with an error that names its fault.
#include "kernels/plugin/plugin_library.h"
#include "reference/kernel_walker.h"
#include "sim/run/item_kernel.h"
#include "sim/run/probe/probe.h"
#include "sim/scenario/random_scenario.h"
#include "sim/scenario/score_terms.h"
#include "tests/support/graded_run.h"
#include "tests/support/sweep.h"
#include "tests/support/walker_cases.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

Result<kernels::PluginMemory> no_device() {
  return make_error(ErrorKind::unavailable, "no device in this test");
}

/// Sets the environment that makes the wrong plugin wrong, for its lifetime.
class Wrong {
 public:
  explicit Wrong(const char* how) { setenv("CPSCOPE_WRONG", how, 1); }
  ~Wrong() { unsetenv("CPSCOPE_WRONG"); }
  Wrong(const Wrong&) = delete;
  Wrong& operator=(const Wrong&) = delete;
};

std::unique_ptr<Executor> open(const std::string& path) {
  Result<ItemKernel> kernel = kernels::open_plugin(path, no_device);
  EXPECT_TRUE(kernel.ok()) << to_text(kernel.error());
  if (!kernel) return nullptr;
  return reference::make_kernel_walker("plugin:" + path, std::move(kernel).value());
}

std::string refusal_of(const std::string& path) {
  const Result<ItemKernel> kernel = kernels::open_plugin(path, no_device);
  EXPECT_FALSE(kernel.ok());
  if (kernel.ok()) return "";
  EXPECT_EQ(kernel.error().kind, ErrorKind::unavailable);
  return to_text(kernel.error());
}

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in:\n" << text;
}

/// One ring of four ranks, GQA, forward and backward.
Scenario plain_case() {
  Scenario scenario = walker_case({37, 0, 21}, 4);
  scenario.numerics.dtype = Dtype::bf16;
  return scenario;
}

ExecutedRun run_on(Executor& executor, const Scenario& scenario) {
  std::optional<ExecutedRun> run = run_graded_on(executor, scenario);
  EXPECT_TRUE(run.has_value());
  return *std::move(run);
}

/// The error of a run with the wrong plugin.
Error error_of_wrong(const char* how) {
  const Wrong wrong(how);
  const std::unique_ptr<Executor> executor = open(CPSCOPE_WRONG_PLUGIN);
  const ExecutedRun run = run_on(*executor, plain_case());
  EXPECT_FALSE(run.output.ok()) << how;
  return run.output.ok() ? Error{} : run.output.error();
}

TEST(PluginExample, IsRightOnRandomScenarios) {
  const std::unique_ptr<Executor> executor = open(CPSCOPE_NAIVE_PLUGIN);
  int run_count = 0;
  for (uint64_t seed = 0; seed < sweep(20, 60); ++seed) {
    const Scenario scenario = without_score_terms(random_scenario(seed));
    const std::optional<ExecutedRun> run = run_graded_on(*executor, scenario);
    if (!run) continue;
    ASSERT_TRUE(run->output.ok()) << to_text(run->output.error());
    EXPECT_TRUE(run->grade.passed) << "seed " << seed << "\n" << describe(scenario, run->grade);
    ++run_count;
  }
  EXPECT_GT(run_count, 13);
}

TEST(PluginExample, IsRightInEveryDtypeAndForSinks) {
  const std::unique_ptr<Executor> executor = open(CPSCOPE_NAIVE_PLUGIN);
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::fp32, Dtype::fp64}) {
    for (const Accumulate accumulate : {Accumulate::fp32, Accumulate::dtype}) {
      Scenario scenario = plain_case();
      scenario.numerics.dtype = dtype;
      scenario.numerics.accumulate = accumulate;
      scenario.attention.softmax_type = SoftmaxType::learnable;
      scenario.attention.softcap = 20;
      const ExecutedRun run = run_on(*executor, scenario);
      ASSERT_TRUE(run.output.ok()) << to_text(run.output.error());
      EXPECT_TRUE(run.grade.passed) << describe(scenario, run.grade);
    }
  }
}

TEST(PluginExample, ComputesForQueriesOfOtherRanksInTheForward) {
  const std::unique_ptr<Executor> executor = open(CPSCOPE_NAIVE_PLUGIN);
  for (const CommType type : {CommType::pass_q, CommType::token_ring, CommType::helper_ring,
                              CommType::mesh, CommType::gather_q}) {
    Scenario scenario = plain_case();
    scenario.parallel.comm_type = type;
    scenario.numerics.backward = false;
    const ExecutedRun run = run_on(*executor, scenario);
    ASSERT_TRUE(run.output.ok()) << to_text(run.output.error());
    EXPECT_TRUE(run.grade.passed) << describe(scenario, run.grade);
    scenario.numerics.backward = true;
    const ExecutedRun both = run_on(*executor, scenario);
    ASSERT_FALSE(both.output.ok()) << to_name(type);
    EXPECT_EQ(both.output.error().kind, ErrorKind::unavailable);
    expect_contains(to_text(both.output.error()),
                    "kernels of others read out in the backward, and with queries of other ranks "
                    "only lse and delta arrive; use backward = false, or --executor cpu");
  }
}

TEST(PluginExample, PassesTheProbe) {
  const std::unique_ptr<Executor> executor = open(CPSCOPE_NAIVE_PLUGIN);
  MaskWitness witness;
  // Causal, by hand: query i sees keys 0 to i.
  witness.visible_keys = [](const Scenario& scenario) {
    return [&scenario](int64_t sequence) {
      std::vector<std::vector<KeyInterval>> rows;
      for (int64_t i = 0; i < scenario.batch.lengths[sequence]; ++i) rows.push_back({{0, i + 1}});
      return rows;
    };
  };
  const std::optional<CheckedPlan> plan = plan_unless_refused(probe_scenario(plain_case()));
  const Result<ProbeReport> report = probe_plan(*plan, *executor, witness);
  ASSERT_TRUE(report.ok()) << to_text(report.error());
  EXPECT_TRUE(report.value().passed()) << report.value().first->text;
  const Wrong wrong("head");
  const std::unique_ptr<Executor> broken = open(CPSCOPE_WRONG_PLUGIN);
  EXPECT_FALSE(probe_plan(*plan, *broken, witness).value().passed());
}

TEST(WrongPlugin, OfZerosFailsTheVerdict) {
  const Wrong wrong("zeros");
  const std::unique_ptr<Executor> executor = open(CPSCOPE_WRONG_PLUGIN);
  const ExecutedRun run = run_on(*executor, plain_case());
  ASSERT_TRUE(run.output.ok());
  EXPECT_FALSE(run.grade.passed);
  EXPECT_FALSE(run.grade.tensors[0].passed);
}

TEST(WrongPlugin, ThatWritesNothingLeavesNaN) {
  const Wrong wrong("unwritten");
  const std::unique_ptr<Executor> executor = open(CPSCOPE_WRONG_PLUGIN);
  const ExecutedRun run = run_on(*executor, plain_case());
  ASSERT_TRUE(run.output.ok());
  EXPECT_FALSE(run.grade.passed);
  EXPECT_GT(run.grade.tensors[0].nan, 0);
}

TEST(WrongPlugin, ThatWritesPastAnArrayIsNamedWithPassRankAndStep) {
  const Error past = error_of_wrong("past_end");
  EXPECT_EQ(past.kind, ErrorKind::failed);
  expect_contains(to_text(past), "wrote past the end of out: forward, rank 0, step 0");
  expect_contains(to_text(error_of_wrong("before")), "wrote before the beginning of dk");
  expect_contains(to_text(error_of_wrong("input")), "wrote into its input k");
  expect_contains(to_text(error_of_wrong("boundaries")), "wrote into its input cu_seqlens_kv");
}

TEST(WrongPlugin, ThatReturnsAStatusIsQuoted) {
  const Error status = error_of_wrong("status");
  EXPECT_EQ(status.kind, ErrorKind::failed);
  expect_contains(to_text(status), "returned 7 (\"no launch for ");
  const Error unsupported = error_of_wrong("backward");
  EXPECT_EQ(unsupported.kind, ErrorKind::unavailable);
  expect_contains(to_text(unsupported), "does not support this call: backward, rank ");
}

TEST(WrongPlugin, ThatCannotBeLoadedSaysWhy) {
  expect_contains(refusal_of("nowhere.so"), "plugin nowhere.so cannot be used: no such file");
  expect_contains(refusal_of(CPSCOPE_SYMBOLLESS_PLUGIN), "it does not export cpscope_open_plugin");
  const std::string text = testing::TempDir() + "cpscope_no_library.so";
  std::ofstream(text) << "not a library";
  expect_contains(refusal_of(text), "cannot be used: ");
  std::filesystem::remove(text);
  const std::pair<const char*, const char*> cases[] = {
      {"abi", "it speaks version 99 of the plugin interface, this program 1"},
      {"nothing", "cpscope_open_plugin returned no description"},
      {"no_attend", "it has no function attend"},
      {"memory", "it asks for memory that there is not: 5"},
      {"device", "it asks for device memory: no device in this test"}};
  for (const auto& [how, words] : cases) {
    const Wrong wrong(how);
    expect_contains(refusal_of(CPSCOPE_WRONG_PLUGIN), words);
  }
}

TEST(RowBoundaries, AreTransformerEnginesOfTwoPackedSequences) {
  // Slots 8 and 4 with 7 and 3 valid tokens on two ranks: ranks hold 0 1 6 7 8 11 and 2 3 4 5 9 10.
  Scenario scenario = walker_case({7, 3}, 2);
  scenario.batch.slots = scenario.batch.kv_slots = {8, 4};
  const std::optional<CheckedPlan> plan = plan_unless_refused(scenario);
  const Layout& layout = plan->plan().layout;
  const auto first = find_row_boundaries(layout.q_runs[RankId{0}], layout.slots, Side::q),
             second = find_row_boundaries(layout.q_runs[RankId{1}], layout.slots, Side::q);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->cu_seqlens, (std::vector<int32_t>{0, 3, 4}));
  EXPECT_EQ(first->cu_seqlens_padded, (std::vector<int32_t>{0, 4, 6}));
  EXPECT_EQ(second->cu_seqlens, (std::vector<int32_t>{0, 4, 6}));
  EXPECT_EQ(second->cu_seqlens_padded, (std::vector<int32_t>{0, 4, 6}));
}

TEST(RowBoundaries, AreNotMadeUpWhereSequencesInterleave) {
  const BatchSlots slots{{{0, 2, 3, 0, 2, 3}, {3, 3, 3, 3, 3, 3}}, 7, 7};
  const auto of = [&](std::vector<TokenRun> runs) {
    return find_row_boundaries(runs, slots, Side::q).has_value();
  };
  EXPECT_TRUE(of({{0, 7, 1}}));
  EXPECT_FALSE(of({{3, 4, 1}, {0, 1, 1}})) << "the second sequence first";
  EXPECT_FALSE(of({{2, 3, 1}, {0, 1, 1}})) << "padding before valid rows";
  EXPECT_FALSE(of({{6, 7, 1}, {5, 6, 1}})) << "the tail before a sequence";
  EXPECT_TRUE(of({}));
}

}  // namespace
}  // namespace cpscope::tests
