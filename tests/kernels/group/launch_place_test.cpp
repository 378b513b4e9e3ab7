#include "kernels/group/launch_place.h"

#include <map>
#include <string>

#include <gtest/gtest.h>

namespace cpscope::kernels {
namespace {

using Variables = std::map<std::string, std::string>;

Result<LaunchPlace> find_place(const Variables& variables) {
  return find_launch_place([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

std::string place_error(const Variables& variables) {
  const Result<LaunchPlace> place = find_place(variables);
  if (place) return "no error";
  EXPECT_EQ(place.error().kind, ErrorKind::bad_input);
  return to_text(place.error());
}

Variables torchrun() {
  return {{"RANK", "5"},
          {"WORLD_SIZE", "8"},
          {"LOCAL_RANK", "1"},
          {"LOCAL_WORLD_SIZE", "4"},
          {"MASTER_ADDR", "node7"},
          {"MASTER_PORT", "29500"}};
}

Variables mpirun() {
  return {{"OMPI_COMM_WORLD_RANK", "3"},
          {"OMPI_COMM_WORLD_SIZE", "4"},
          {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
          {"PMIX_NAMESPACE", "prterun-host-4711@1"}};
}

Variables srun() {
  return {{"SLURM_PROCID", "6"},
          {"SLURM_NTASKS", "7"},
          {"SLURM_LOCALID", "2"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_JOB_ID", "815"},
          {"SLURM_NODEID", "1"},
          {"SLURM_JOB_NODELIST", "gpu[003-006,010],login1"},
          {"SLURM_STEP_TASKS_PER_NODE", "4,3"}};
}

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

TEST(LaunchPlace, IsSingleProcessWithoutLauncher) {
  const Result<LaunchPlace> place = find_place({{"MASTER_ADDR", "node7"}});
  ASSERT_TRUE(place);
  EXPECT_EQ(place.value().launcher, "");
  EXPECT_EQ(place.value().num_processes, 1);
}

TEST(LaunchPlace, ReadsTorchrun) {
  const Result<LaunchPlace> place = find_place(torchrun());
  ASSERT_TRUE(place) << to_text(place.error());
  EXPECT_EQ(place.value().launcher, "torchrun");
  EXPECT_EQ(place.value().process, 5);
  EXPECT_EQ(place.value().num_processes, 8);
  EXPECT_EQ(place.value().local_process, 1);
  EXPECT_EQ(place.value().num_local_processes, 4);
  EXPECT_EQ(place.value().host, "node7");
  EXPECT_EQ(place.value().port, 29500);
}

TEST(LaunchPlace, ReadsMpirunOnOneHostWithoutAddress) {
  const Result<LaunchPlace> place = find_place(mpirun());
  ASSERT_TRUE(place) << to_text(place.error());
  EXPECT_EQ(place.value().launcher, "mpirun");
  EXPECT_EQ(place.value().process, 3);
  EXPECT_EQ(place.value().num_processes, 4);
  EXPECT_EQ(place.value().host, "127.0.0.1");
  EXPECT_GE(place.value().port, 20'000);
  EXPECT_LT(place.value().port, 30'000);
}

TEST(LaunchPlace, GivesJobsDifferentPorts) {
  EXPECT_NE(find_place(mpirun()).value().port,
            find_place(with(mpirun(), "PMIX_NAMESPACE", "prterun-host-4712@1")).value().port);
}

TEST(LaunchPlace, ReadsMpichsMpirun) {
  const Result<LaunchPlace> place = find_place(
      {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}});
  ASSERT_TRUE(place) << to_text(place.error());
  EXPECT_EQ(place.value().launcher, "mpirun");
  EXPECT_EQ(place.value().process, 1);
}

TEST(LaunchPlace, ReadsSrunAndTakesItsFirstHost) {
  const Result<LaunchPlace> place = find_place(srun());
  ASSERT_TRUE(place) << to_text(place.error());
  EXPECT_EQ(place.value().launcher, "srun");
  EXPECT_EQ(place.value().process, 6);
  EXPECT_EQ(place.value().num_processes, 7);
  EXPECT_EQ(place.value().local_process, 2);
  EXPECT_EQ(place.value().num_local_processes, 3);
  EXPECT_EQ(place.value().host, "gpu003");
}

TEST(LaunchPlace, PrefersTheStepsOwnTotalAndHosts) {
  const Result<LaunchPlace> place =
      find_place(with(with(with(srun(), "SLURM_NTASKS", "64"), "SLURM_STEP_NUM_TASKS", "7"),
                      "SLURM_STEP_NODELIST", "gpu[005-006]"));
  ASSERT_TRUE(place) << to_text(place.error());
  EXPECT_EQ(place.value().num_processes, 7);
  EXPECT_EQ(place.value().host, "gpu005");
}

TEST(LaunchPlace, IsSingleProcessInsideBatchScript) {
  const Result<LaunchPlace> place = find_place(without(srun(), "SLURM_STEP_ID"));
  ASSERT_TRUE(place);
  EXPECT_EQ(place.value().num_processes, 1);
}

TEST(LaunchPlace, PrefersTorchrunThatSrunStarted) {
  Variables both = srun();
  both.merge(torchrun());
  EXPECT_EQ(find_place(both).value().launcher, "torchrun");
}

TEST(LaunchPlace, MasterAddressOverridesLaunchers) {
  const Result<LaunchPlace> place =
      find_place(with(with(srun(), "MASTER_ADDR", "::1"), "MASTER_PORT", "1234"));
  ASSERT_TRUE(place);
  EXPECT_EQ(place.value().host, "::1");
  EXPECT_EQ(place.value().port, 1234);
}

TEST(LaunchPlace, LeavesThePortOfTorchrunsOwnStoreAlone) {
  EXPECT_EQ(find_place(torchrun()).value().port, 29500);
  EXPECT_EQ(find_place(with(torchrun(), "TORCHELASTIC_USE_AGENT_STORE", "True")).value().port,
            29501);
  EXPECT_EQ(find_place(with(torchrun(), "TORCHELASTIC_USE_AGENT_STORE", "False")).value().port,
            29500);
}

TEST(LaunchPlace, NamesMissingVariables) {
  EXPECT_EQ(place_error(without(torchrun(), "WORLD_SIZE")),
            "environment: variables of torchrun are missing: WORLD_SIZE; there are RANK, "
            "LOCAL_RANK; start with the launcher, or unset all of them");
  EXPECT_EQ(place_error(without(torchrun(), "MASTER_PORT")),
            "environment: variables of torchrun are missing: MASTER_PORT; there are WORLD_SIZE 8; "
            "start with torchrun, or set MASTER_ADDR and MASTER_PORT");
  EXPECT_NE(place_error(without(mpirun(), "OMPI_COMM_WORLD_LOCAL_RANK"))
                .find("missing: OMPI_COMM_WORLD_LO"),
            std::string::npos);
  EXPECT_NE(place_error(without(srun(), "SLURM_JOB_NODELIST")).find("SLURM_JOB_NODELIST"),
            std::string::npos);
}

TEST(LaunchPlace, AsksForAddressWhenMpirunUsesSeveralHosts) {
  EXPECT_EQ(place_error(with(mpirun(), "OMPI_COMM_WORLD_SIZE", "8")),
            "environment: MASTER_ADDR is missing: mpirun says that 8 processes run on several "
            "hosts, not where process 0 is; set MASTER_ADDR to the host of process 0");
}

TEST(LaunchPlace, NamesContradictingVariables) {
  EXPECT_EQ(place_error(with(torchrun(), "RANK", "8")),
            "environment: RANK and WORLD_SIZE contradict each other: 8 and 8; a number counts from "
            "0 and stays below its total");
  EXPECT_NE(
      place_error(with(torchrun(), "LOCAL_RANK", "4")).find("LOCAL_RANK and LOCAL_WORLD_SIZE"),
      std::string::npos);
  EXPECT_NE(
      place_error(with(torchrun(), "LOCAL_WORLD_SIZE", "9")).find("LOCAL_WORLD_SIZE and WORLD"),
      std::string::npos);
  EXPECT_NE(place_error(with(mpirun(), "OMPI_COMM_WORLD_RANK", "1")).find("LOCAL_RANK and OMPI"),
            std::string::npos);
  Variables both = mpirun();
  both.merge(Variables{{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}});
  EXPECT_EQ(
      place_error(both),
      "environment: WORLD_SIZE and OMPI_COMM_WORLD_SIZE contradict each other: 1 and 4; unset "
      "RANK, WORLD_SIZE and LOCAL_RANK under mpirun");
}

TEST(LaunchPlace, RefusesWhatIsNoNumber) {
  for (const char* value : {"five", "-1", "5 ", "99999999999"}) {
    EXPECT_NE(place_error(with(torchrun(), "RANK", value)).find("RANK must be a whole number"),
              std::string::npos)
        << value;
  }
  EXPECT_NE(place_error(with(torchrun(), "MASTER_PORT", "70000")).find("1 to 65535: \"70000\""),
            std::string::npos);
}

TEST(LaunchPlace, ReadsHostLists) {
  EXPECT_EQ(first_host("node1"), "node1");
  EXPECT_EQ(first_host("a,b"), "a");
  EXPECT_EQ(first_host("gpu[3,5-7]"), "gpu3");
  EXPECT_EQ(first_host("rack[1-2]n[01-04]-ib,x"), "rack1n01-ib");
  EXPECT_EQ(first_host("broken[12"), "broken12");
  EXPECT_EQ(first_host(""), "");
}

}  // namespace
}  // namespace cpscope::kernels
