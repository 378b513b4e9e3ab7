#include "tests/program/timeline_case.h"

namespace cpscope::tests {

std::vector<std::string> timeline_parallels() {
  return {"cp_size = 4", "cp_size = 4\ncp_comm_type = \"a2a\"",
          "cp_size = 4\ncp_comm_type = \"all_gather\"", "cp_size = 4\ncp_comm_type = \"a2a+p2p\"",
          "cp_size = 3\ncp_comm_type = \"group_cast\"\nlayout = \"lpt\"\ndispatch_chunk = 16",
          "cp_size = 1",
          // More at once than there are threads.
          "cp_size = 20\ncp_comm_type = \"all_gather\""};
}

std::string bf16_scenario(const std::string& parallel) {
  return write_file("export.toml",
                    small_scenario(parallel, "lengths = [37, 0, 21]", "", "dtype = \"bf16\""));
}

ProgramRun run_timeline(const std::string& scenario, const std::string& options,
                        const std::string& cluster) {
  return run_cpscope("timeline " + scenario + " --cluster " CPSCOPE_CLUSTERS "/" + cluster +
                     ".toml " + options);
}

}  // namespace cpscope::tests
