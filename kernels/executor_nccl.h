#pragma once

#include "kernels/attention_launch.h"
#include "kernels/launch_place.h"
#include "kernels/nccl_library.h"
#include "kernels/process_group.h"
#include "sim/run/executor.h"

#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace cpscope::kernels {

struct NcclSettings {
  LaunchPlace place;
  GroupLimits limits;
  std::function<Result<NcclLibrary>()> load_library;
  std::vector<int> devices;              // empty: this process's share of what the host has
  std::optional<Generation> generation;  // force one; else the newest that fits
};

/// What the launcher and CPSCOPE_HANG_SECONDS say, with the library that load_nccl finds.
Result<NcclSettings> nccl_settings_of_environment();

/// Executor `nccl`: one rank of the plan on each GPU, of one process that drives all GPUs of its
/// host or of many processes that a launcher started (every one runs the same command; the answer
/// is whole on process 0 alone, RunOutput::is_whole). Transfers of the plan, collective ones too,
/// are grouped sends and receives of exactly their bytes, packed on a communication stream beside
/// the compute stream. The communicator is made at the first run and serves all later ones.
///
/// A process that dies, hangs or fails ends the run everywhere (ProcessGroup says how soon): kind
/// unavailable, with its rank, step and reason; then the executor is of no use any more.
std::unique_ptr<Executor> make_executor_nccl(NcclSettings settings);

/// With the settings of the environment; where they are wrong, absence() says so.
std::unique_ptr<Executor> make_executor_nccl();

}  // namespace cpscope::kernels
