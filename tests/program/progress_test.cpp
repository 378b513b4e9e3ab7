// What long work says before and while it runs.
#include "reference/dense_oracle.h"
#include "reference/plan_walker.h"
#include "sim/findings/progress_lines.h"
#include "sim/run/grade/case.h"
#include "sim/run/probe/probe.h"
#include "sim/run/run_inputs.h"
#include "tests/program/program_run.h"

#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

TEST(Progress, SaysAboutHowLongLongWorkTakes) {
  EXPECT_EQ(describe_long_work({1.2e13, 171, 2}), "about 3 minutes: 1.2e13 FLOP on 2 cores");
  EXPECT_EQ(describe_long_work({9.96e9, 12, 1}), "about 10 seconds: 1.0e10 FLOP on 1 core");
  EXPECT_EQ(describe_long_work({1e11, 9.9, 2}), std::nullopt);
  EXPECT_EQ(describe_seconds(0.2), "1 second");
  EXPECT_EQ(describe_seconds(7.4), "7 seconds");
  EXPECT_EQ(describe_seconds(44), "40 seconds");
  EXPECT_EQ(describe_seconds(80), "1 minute");
  EXPECT_EQ(describe_seconds(3000), "50 minutes");
  EXPECT_EQ(describe_seconds(9000), "2.5 hours");
}

TEST(Progress, WritesALineEveryTenSeconds) {
  ProgressLines lines;
  EXPECT_EQ(lines.line("run", 0.01, 1), std::nullopt);
  EXPECT_EQ(lines.line("run", 0.02, 10), "run: 2 %") << "too early to tell how long it takes";
  EXPECT_EQ(lines.line("run", 0.10, 19), std::nullopt);
  EXPECT_EQ(lines.line("run", 0.34, 51), "run: 34 %, about 2 minutes left");
  EXPECT_EQ(lines.line("run", 1.0, 60.5), std::nullopt);
  // The next phase began when the first one ended.
  EXPECT_EQ(lines.line("judge", 0.25, 65.5), "judge: 25 %, about 20 seconds left");
  EXPECT_EQ(lines.line("judge", 0.999, 80.5), "judge: 99 %, about 1 second left");
  // So does another search of the same name.
  EXPECT_EQ(lines.line("judge", 0.5, 90.5), "judge: 50 %, about 10 seconds left");
}

Scenario load_small(const std::string& numerics) {
  return load_scenario(
             write_file("progress.toml", small_scenario("cp_size = 4", "lengths = [37, 0, 21]", "",
                                                        "dtype = \"bf16\"\n" + numerics)))
      .value()
      .scenario;
}

/// Shares of a piece of work: ascending, to the end.
struct Shares {
  std::vector<double> seen;

  ShareDone recorder() {
    return [this](double share) { seen.push_back(share); };
  }
  void expect_whole(size_t at_least, const std::string& what) const {
    ASSERT_GE(seen.size(), at_least) << what;
    for (size_t i = 1; i < seen.size(); ++i) EXPECT_GE(seen[i], seen[i - 1]) << what;
    EXPECT_GT(seen.front(), 0) << what;
    EXPECT_NEAR(seen.back(), 1, 1e-9) << what;
  }
};

TEST(Progress, CountsTheWorkOfRunsAndJudgesAndNotOnlyTheirItems) {
  const Scenario scenario = load_small("backward = true");
  const CheckedPlan plan = plan_scenario(scenario).value();
  const RunInputs inputs = make_run_inputs(plan.plan(), false);
  const auto walker = reference::make_plan_walker();
  Shares run;
  const Result<RunOutput> output =
      walker->run(plan, inputs, {.threads = 2, .control = {.share = run.recorder()}});
  ASSERT_TRUE(output.ok());
  size_t units = 0;
  for (const ComputeItem& item : plan.plan().forward.computes)
    units += item.num_slices > 0 ? static_cast<size_t>(item.heads.size()) : 0;
  run.expect_whole(units, "every head of every computation counts");
  Shares judged;
  ASSERT_TRUE(
      reference::judge(scenario, inputs, count_hops(plan.plan()), {.share = judged.recorder()})
          .ok());
  judged.expect_whole(8, "two answers of two sequences and two KV heads");
  Shares sampled;
  ASSERT_TRUE(reference::judge_rows(scenario, inputs, output.value().answer, {{0, 5, 40}, {3}},
                                    count_hops(plan.plan()), {.share = sampled.recorder()})
                  .ok());
  sampled.expect_whole(4, "a sample");
  Shares probed;
  ASSERT_TRUE(
      run_probes(scenario, *walker, reference::dense_oracle().witness, probed.recorder()).ok());
  probed.expect_whole(units, "probes");
}

TEST(Progress, EstimatesTheWholeRunAlsoWhereOnlyASampleIsJudged) {
  const Scenario scenario = load_small("backward = false");
  const PlanSummary summary = summarise(plan_scenario(scenario).value().plan());
  const double flops = flops_of_run(scenario, summary);
  EXPECT_GT(flops, 0);
  EXPECT_EQ(estimate_run(scenario, summary, "cpu").flops, flops);
  EXPECT_GT(estimate_run(scenario, summary, "cpu").seconds, 0);
  EXPECT_EQ(estimate_run(scenario, summary, "cuda").seconds, 0) << "not on this processor";
  EXPECT_EQ(estimate_judge(scenario, summary, 0).flops, 2 * flops);
  // Of 58 queries and keys.
  EXPECT_NEAR(estimate_judge(scenario, summary, 2).flops, 2 * flops * 4 / 58, 1e-6 * flops);
  EXPECT_EQ(estimate_judge(scenario, summary, 500).flops, 2 * flops);
  EXPECT_EQ(estimate_flops(scenario, summary), 3 * flops);
}

/// What the program writes until it has said how much work there is; it is stopped then.
ProgramRun run_until_announced(const std::string& arguments) {
  const std::string out = (work_folder() / "long.out").string(),
                    err = (work_folder() / "long.err").string();
  const std::string command = "'" + std::string(CPSCOPE_PROGRAM) + "' " + arguments + " >'" + out +
                              "' 2>'" + err +
                              "' </dev/null & for i in $(seq 300); do grep -q FLOP '" + err +
                              "' && break; sleep 0.1; done; kill -9 $!; wait 2>/dev/null";
  [[maybe_unused]] const int status = std::system(command.c_str());
  return {0, read_text(out), read_text(err)};
}

TEST(Progress, AnnouncesLongWorkOnStderrBeforeItBegins) {
  setenv("CPSCOPE_THREADS", "1", 1);
  const std::string file =
      write_file("long.toml", small_scenario("cp_size = 2", "lengths = [100000]", "",
                                             "dtype = \"bf16\"\nbackward = false"));
  for (const char* arguments : {"run --sample 8 --json ", "verify --max-flops 0 ", "probe "}) {
    const ProgramRun stopped = run_until_announced(arguments + file);
    EXPECT_NE(stopped.err.find("about "), std::string::npos) << arguments << "\n" << stopped.err;
    EXPECT_NE(stopped.err.find(" FLOP on 1 core\n"), std::string::npos) << arguments << "\n"
                                                                        << stopped.err;
    EXPECT_EQ(stopped.out.find("FLOP"), std::string::npos) << arguments << "\n" << stopped.out;
  }
  unsetenv("CPSCOPE_THREADS");
  const ProgramRun small = run_cpscope("run " + write_file("small.toml", small_scenario()));
  EXPECT_EQ(small.exit_code, 0);
  EXPECT_EQ(small.err, "") << "short work says nothing";
}

}  // namespace
}  // namespace cpscope::tests
