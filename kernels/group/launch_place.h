#pragma once

#include "sim/base/result.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace cpscope::kernels {

/// Which process of how many this one is, and where process 0 listens.
struct LaunchPlace {
  std::string launcher;  // torchrun | mpirun | srun; empty: started alone
  int32_t process = 0;
  int32_t num_processes = 1;
  int32_t local_process = 0;        // among the processes of this host
  int32_t num_local_processes = 1;  // 0 = the launcher does not say
  std::string host = "127.0.0.1";   // of process 0
  int32_t port = 0;
  std::string job;  // tells this job from others that use the same port; may be empty
};

/// A variable's value; nothing when it is not set.
using Environment = std::function<std::optional<std::string>(const char* name)>;

/// The variables of this process; an empty one counts as not set.
Environment process_environment();

/// Reads what torchrun (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE), mpirun
/// (OMPI_COMM_WORLD_*, or PMI_RANK and PMI_SIZE with MPI_LOCAL*) or srun (SLURM_PROCID and others
/// of a job step) set, the first of them that is there. MASTER_ADDR and MASTER_PORT say where
/// process 0 listens; without them srun's first host, this host when mpirun started everything
/// here, and a port that follows from the job's number. Errors: bad_input that names the variables,
/// when some are missing, are no numbers or contradict each other.
Result<LaunchPlace> find_launch_place(const Environment& environment);

/// First host of a Slurm list: "gpu[003-006,010],login1" -> "gpu003".
std::string first_host(const std::string& list);

}  // namespace cpscope::kernels
