#include "sim/app/cli/verified_file.h"
#include "sim/run/grade/case.h"
#include "sim/scenario/random_scenario.h"
#include "tests/program/program_run.h"
#include "tests/program/walker_toolbox.h"
#include "tests/support/sweep.h"

#include <cstdlib>
#include <fstream>
#include <numeric>
#include <sstream>

#include <gtest/gtest.h>
#include <sys/wait.h>

namespace cpscope::tests {
namespace {

/// The scenario as the third opinion can read it: fp64, every length and slice written out.
Scenario spelled_out(Scenario scenario) {
  scenario.numerics.dtype = Dtype::fp64;
  scenario.batch.generator.reset();
  scenario.attention.generator.reset();
  return scenario;
}

/// Runs the scenario in fp64 and records it. False when it is refused or too long for a test.
bool record_walk(Toolbox& toolbox, const Scenario& scenario, const std::filesystem::path& path) {
  CaseOutcome outcome =
      run_case(toolbox, scenario, {.executor = "", .poison = true, .max_flops = 4e9});
  if (outcome.status != CaseStatus::pass) {
    EXPECT_NE(outcome.status, CaseStatus::fail) << outcome.reason;
    return false;
  }
  const Result<std::string> written =
      write_record(make_record(outcome, print_scenario(scenario)), path.string());
  EXPECT_TRUE(written.ok());
  return written.ok();
}

/// Asks torch_opinion.py about all records of the folder; prints what it says when it disagrees.
void ask_torch(const std::filesystem::path& folder, int records) {
  const std::string log = (folder / "opinion.log").string();
  const std::string command = "/usr/bin/env PYTHONDONTWRITEBYTECODE=1 " +
                              std::string(CPSCOPE_PYTHON) + " '" + std::string(CPSCOPE_SOURCE_DIR) +
                              "/tests/reference/torch_opinion.py' --tolerance 1e-10 '" +
                              folder.string() + "'/*.safetensors >'" + log + "' 2>&1";
  const int status = std::system(command.c_str());
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  std::ostringstream said;
  said << std::ifstream(log).rdbuf();
  if (code == 77) GTEST_SKIP() << "requires torch: " << said.str();
  EXPECT_EQ(code, 0) << records << " records\n" << said.str();
}

TEST(ThirdOpinion, TorchAgreesWithTheShippedScenariosInDoublePrecision) {
  Toolbox toolbox = make_walker_toolbox();
  const auto folder = work_folder() / "shipped";
  std::filesystem::create_directories(folder);
  const auto files = find_scenarios({std::string(CPSCOPE_SOURCE_DIR) + "/scenarios"});
  ASSERT_TRUE(files.ok());
  int records = 0;
  for (const std::string& file : files.value()) {
    const Result<LoadedScenario> loaded = load_scenario(file);
    ASSERT_TRUE(loaded.ok()) << file;
    // A record holds no positions of a file.
    if (!loaded.value().scenario.batch.positions_file.empty()) continue;
    // The third opinion knows neither 8 bits nor values that are a part of the keys.
    if (loaded.value().scenario.numerics.fp8 || loaded.value().scenario.attention.latent_dim > 0)
      continue;
    const auto& lengths = loaded.value().scenario.batch.lengths;
    const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    if (tokens > static_cast<int64_t>(sweep(1024, 1 << 30))) continue;
    const std::string name = std::filesystem::path(file).stem().string();
    records += record_walk(toolbox, spelled_out(loaded.value().scenario),
                           folder / (name + ".safetensors"));
  }
  ASSERT_GE(records, 5) << "too few shipped scenarios are small enough for a test";
  ask_torch(folder, records);
}

TEST(ThirdOpinion, TorchAgreesWithRandomScenarios) {
  Toolbox toolbox = make_walker_toolbox();
  const auto folder = work_folder() / "random";
  std::filesystem::create_directories(folder);
  int records = 0;
  for (uint64_t seed = 1; seed <= sweep(40, 150); ++seed) {
    // PyTorch knows the draws of positions, not those of a plan's items.
    Scenario scenario = random_scenario(seed);
    scenario.attention.dropout_mode = DropoutMode::split_invariant;
    records += record_walk(toolbox, scenario, folder / (std::to_string(seed) + ".safetensors"));
  }
  ASSERT_GE(records, static_cast<int>(sweep(30, 120)));
  ask_torch(folder, records);
}

}  // namespace
}  // namespace cpscope::tests
