#pragma once

#include "kernels/emulator/nccl_emulated.h"
#include "kernels/run/executor_nccl.h"
#include "sim/plan/plan.h"
#include "tests/kernels/group/group_cases.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

/// Executors `nccl` on emulated devices.
namespace cpscope::tests {

inline kernels::NcclSettings settings_of(const kernels::emulator::NcclEmulated& nccl,
                                         int32_t num_devices) {
  kernels::NcclSettings settings;
  // The emulator may take long for one kernel; the main thread does not move meanwhile.
  settings.limits.hang_after = std::chrono::seconds{60};
  settings.devices.assign(static_cast<size_t>(num_devices), 0);
  settings.load_library = [nccl]() -> Result<kernels::NcclLibrary> {
    return kernels::NcclLibrary{nccl.functions(), "emulated", 22809};
  };
  settings.wire = kernels::Wire::nccl;
  return settings;
}

/// Copy engines transfer the rows, and inputs come in pieces, however small they are.
inline kernels::NcclSettings copying_settings(const kernels::emulator::NcclEmulated& nccl,
                                              int32_t num_devices, int32_t most_pieces) {
  kernels::NcclSettings settings = settings_of(nccl, num_devices);
  settings.wire = kernels::Wire::copies;
  settings.most_pieces = most_pieces;
  return settings;
}

inline int64_t wire_bytes(const Plan& plan) {
  int64_t bytes = 0;
  for (const Pass* pass : {&plan.forward, &plan.backward}) {
    for (const TransferItem& item : pass->transfers) bytes += item.src == item.dst ? 0 : item.bytes;
  }
  return bytes;
}

/// The reports of several processes (threads) with one device each; `act` gets their executor.
inline std::vector<std::string> run_processes(
    const kernels::emulator::NcclEmulated& nccl, int32_t num_processes,
    const std::function<std::string(int32_t process, Executor& executor)>& act,
    std::chrono::seconds hang_after = std::chrono::seconds{60}) {
  const int32_t port = kernels::tests::find_free_port();
  std::vector<std::string> reports(static_cast<size_t>(num_processes));
  std::vector<std::jthread> threads;
  for (int32_t process = 0; process < num_processes; ++process) {
    threads.emplace_back([&, process] {
      kernels::NcclSettings settings = settings_of(nccl, 1);
      settings.place = kernels::tests::place_of(process, num_processes, port);
      settings.limits.hang_after = hang_after;
      const std::unique_ptr<Executor> executor = kernels::make_executor_nccl(settings);
      reports[static_cast<size_t>(process)] = act(process, *executor);
    });
  }
  threads.clear();
  return reports;
}

}  // namespace cpscope::tests
