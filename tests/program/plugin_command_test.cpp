// `--executor plugin:PATH` as its users meet it.
#include "tests/program/program_run.h"

#include <cstdlib>
#include <string>

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
  const ProgramRun past = run_wrong("past_end");
  EXPECT_EQ(past.exit_code, 1);
  EXPECT_NE(past.err.find("wrote past the end of out"), std::string::npos) << past.err;
  EXPECT_EQ(run_wrong("status").exit_code, 1);
  EXPECT_EQ(run_wrong("backward").exit_code, 3);
  EXPECT_EQ(run_wrong("abi").exit_code, 3);
  const ProgramRun missing = run_cpscope("run " + file + " --executor plugin:nowhere.so");
  EXPECT_EQ(missing.exit_code, 3);
  EXPECT_EQ(missing.err, "cpscope: plugin nowhere.so cannot be used: no such file\n");
}

}  // namespace
}  // namespace cpscope::tests
