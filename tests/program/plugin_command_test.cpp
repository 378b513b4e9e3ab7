// `--executor plugin:PATH` as its users meet it.
#include "tests/program/program_run.h"

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace cpscope::tests {
namespace {

using nlohmann::json;

const std::string kNaive = std::string("plugin:") + CPSCOPE_NAIVE_PLUGIN;
const std::string kWrong = std::string("plugin:") + CPSCOPE_WRONG_PLUGIN;

std::string scenario_file() { return write_file("plugin.toml", small_scenario()); }

TEST(PluginCommand, RunsVerifiesAndProbesOnSomebodysKernel) {
  const std::string file = scenario_file();
  const ProgramRun run = run_cpscope("run " + file + " --poison --json --executor " + kNaive);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(json::parse(run.out)["executor"], kNaive);
  EXPECT_EQ(run_cpscope("verify " + file + " " + file + " --executor " + kNaive).exit_code, 0);
  EXPECT_EQ(run_cpscope("probe " + file + " --executor " + kNaive).exit_code, 0);
}

TEST(PluginCommand, ExitsByWhatWentWrong) {
  const std::string file = scenario_file();
  const auto run_wrong = [&](const char* how) {
    setenv("CPSCOPE_WRONG", how, 1);
    ProgramRun run = run_cpscope("run " + file + " --executor " + kWrong);
    unsetenv("CPSCOPE_WRONG");
    return run;
  };
  EXPECT_EQ(run_wrong("zeros").exit_code, 1);
  const ProgramRun nan = run_wrong("nan_logit");
  EXPECT_EQ(nan.exit_code, 1);
  EXPECT_NE(nan.out.find("max_logit"), std::string::npos) << nan.out;
  const ProgramRun past = run_wrong("past_end");
  EXPECT_EQ(past.exit_code, 1);
  EXPECT_NE(past.err.find("wrote past the end of out"), std::string::npos) << past.err;
  EXPECT_EQ(run_wrong("status").exit_code, 1);
  EXPECT_EQ(run_wrong("backward").exit_code, 3);
  EXPECT_EQ(run_wrong("abi").exit_code, 3);
  for (const auto& [how, said] : std::vector<std::pair<const char*, const char*>>{
           {"crash", "has crashed: SIGSEGV (Segmentation fault) in forward, rank 1, step 0"},
           {"abort", "has crashed: SIGABRT (Aborted) in forward, rank 0, step 0"},
           {"exit", "has ended its process with exit code 0 in forward, rank 0, step 0"}}) {
    const ProgramRun ended = run_wrong(how);
    EXPECT_EQ(ended.exit_code, 1) << how;
    EXPECT_NE(ended.err.find(said), std::string::npos) << ended.err;
    EXPECT_EQ(ended.err.find(":1:1:"), std::string::npos) << "no fault of the file: " << ended.err;
  }
  setenv("CPSCOPE_PLUGIN_SECONDS", "0.3", 1);
  EXPECT_NE(run_wrong("hang").err.find("has not returned for 0.3 s in forward, rank 0, step 0"),
            std::string::npos);
  unsetenv("CPSCOPE_PLUGIN_SECONDS");
  const ProgramRun missing = run_cpscope("run " + file + " --executor plugin:nowhere.so");
  EXPECT_EQ(missing.exit_code, 3);
  EXPECT_EQ(missing.err, "cpscope: plugin nowhere.so cannot be used: no such file\n");
}

TEST(PluginCommand, SurvivesAPluginThatEndsWhileItIsOpened) {
  setenv("CPSCOPE_WRONG", "open", 1);
  const ProgramRun run = run_cpscope("run " + scenario_file() + " --json --executor " + kWrong);
  unsetenv("CPSCOPE_WRONG");
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_NE(json::parse(run.out)["error"]["message"].get<std::string>().find(
                "has ended its process with exit code 0 while it was opened"),
            std::string::npos)
      << run.out;
}

TEST(PluginCommand, KeepsWhatAPluginPrintsOutOfItsDocument) {
  setenv("CPSCOPE_WRONG", "print", 1);
  const ProgramRun run = run_cpscope("run " + scenario_file() + " --json --executor " + kWrong);
  unsetenv("CPSCOPE_WRONG");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(json::parse(run.out)["passed"], true);
  EXPECT_NE(run.err.find("a word on stdout"), std::string::npos);
}

}  // namespace
}  // namespace cpscope::tests
