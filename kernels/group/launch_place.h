#pragma once

#include "sim/base/result.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace cpscope::kernels {

/// Number of this process and of all processes, and the address at which process 0 listens.
struct LaunchPlace {
  std::string launcher;  // torchrun | mpirun | srun; empty: started alone
  int32_t process = 0;
  int32_t num_processes = 1;
  int32_t local_process = 0;        // among the processes of this host
  int32_t num_local_processes = 1;  // 0 = not given by the launcher
  std::string host = "127.0.0.1";   // of process 0
  int32_t port = 0;
  std::string job;  // distinguishes this job from others on the same port; may be empty
};

/// Returns a variable's value; nothing if it is not set.
using Environment = std::function<std::optional<std::string>(const char* name)>;

/// The variables of this process; an empty one counts as not set.
Environment process_environment();

/// Reads what torchrun (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE), mpirun
/// (OMPI_COMM_WORLD_*, or PMI_RANK and PMI_SIZE with MPI_LOCAL*) or srun (SLURM_PROCID and others
/// of a job step) set; the first of them that is present is used. MASTER_ADDR and MASTER_PORT give
/// the address of process 0. Without them it is srun's first host, or this host if mpirun started
/// all processes here, and a port computed from the job's number. Errors: bad_input that names the
/// variables, if some are missing, are no numbers or contradict each other.
Result<LaunchPlace> find_launch_place(const Environment& environment);

/// First host of a Slurm list: "gpu[003-006,010],login1" -> "gpu003".
std::string first_host(const std::string& list);

}  // namespace cpscope::kernels
