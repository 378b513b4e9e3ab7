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
#include <string>
#include <vector>

namespace cpscope::kernels {

struct NcclSettings {
  LaunchPlace place;
  GroupLimits limits;
  std::function<Result<NcclLibrary>()> load_library;
  std::vector<int> devices;              // empty: this process's part of the host's devices
  std::optional<Generation> generation;  // forced; else the newest that fits
  Wire wire = Wire::copies;              // copies only if one process drives devices that reach
                                         // each other
  std::optional<int32_t> most_pieces;    // of heads, with copies; else chosen by the duration of a
                                         // pass
  std::vector<std::string> without;      // names of passes of lowering that do not run
};

/// Settings from the launcher, CPSCOPE_HANG_SECONDS, CPSCOPE_WIRE (copies | nccl) and
/// CPSCOPE_HEAD_PIECES (a number), CPSCOPE_WITHOUT (names of passes of lowering), with the library
/// that load_nccl finds.
Result<NcclSettings> nccl_settings_of_environment();

/// Executor `nccl`: one rank of the plan on each GPU. Either one process drives all GPUs of its
/// host, or a launcher started several processes (all run the same command; the answer is complete
/// only on process 0, RunOutput::is_whole). Transfers of the plan, including collective ones, run
/// at the same time as computes. They are copies of exactly their bytes by copy engines if one
/// process drives all GPUs, else grouped sends and receives. The communicator is made at the first
/// run and used for all later ones.
///
/// A process that dies, hangs or fails ends the run in all processes (ProcessGroup gives the time
/// limit), with an Error of kind failed that names its rank, step and reason. The executor cannot
/// be used afterwards.
std::unique_ptr<Executor> make_executor_nccl(NcclSettings settings);

/// Uses the settings of the environment; if they are invalid, absence() gives the reason.
std::unique_ptr<Executor> make_executor_nccl();

}  // namespace cpscope::kernels
