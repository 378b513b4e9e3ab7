#pragma once

#include "kernels/dispatch/attention_dispatch.h"
#include "kernels/group/launch_place.h"
#include "kernels/group/process_group.h"
#include "kernels/rows/wire.h"
#include "kernels/run/nccl_library.h"
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
  Wire wire = Wire::copies;              // where one process drives devices that reach each other
  std::optional<int32_t> most_pieces;    // of heads, with copies; else by how long a pass takes
};

/// What the launcher, CPSCOPE_HANG_SECONDS, CPSCOPE_WIRE (copies | nccl) and CPSCOPE_HEAD_PIECES (a
/// number) say, with the library that load_nccl finds.
Result<NcclSettings> nccl_settings_of_environment();

/// Executor `nccl`: one rank of the plan on each GPU, of one process that drives all GPUs of its
/// host or of many processes that a launcher started (every one runs the same command; the answer
/// is whole on process 0 alone, RunOutput::is_whole). Transfers of the plan, collective ones too,
/// are copies of exactly their bytes by copy engines where one process drives all GPUs, else
/// grouped sends and receives, beside the computes. The communicator is made at the first run and
/// serves all later ones.
///
/// A process that dies, hangs or fails ends the run everywhere (ProcessGroup says how soon): kind
/// failed, with its rank, step and reason; then the executor is of no use any more.
std::unique_ptr<Executor> make_executor_nccl(NcclSettings settings);

/// With the settings of the environment; where they are wrong, absence() says so.
std::unique_ptr<Executor> make_executor_nccl();

}  // namespace cpscope::kernels
