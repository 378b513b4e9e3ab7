#pragma once

#include "kernels/device/device.h"
#include "sim/base/result.h"

#include <array>
#include <climits>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace cpscope::kernels {

// The few names of NCCL's C interface that cpscope uses, so that nothing of NCCL is needed to
// build. Source: nccl.h of NCCL 2.18 to 2.28.

/// One device's part of a communicator (ncclComm_t).
using NcclCommunicator = struct NcclCommunicatorTag*;

/// Identification by which the ranks of a communicator find each other (ncclUniqueId).
struct NcclUniqueId {
  std::array<char, 128> bytes{};
};

/// ncclResult_t.
enum class NcclStatus : int {
  success = 0,
  cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7
};

/// ncclDataType_t; rows travel as bytes.
enum class NcclDataType : int { uint8 = 1 };

/// ncclConfig_t up to the fields of 2.18; a library with more fields uses its defaults for them.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21800;
  int is_blocking = 0;  // 0: calls return at once and are polled, so that a dead peer blocks no
                        // rank
  int cluster_size = INT_MIN;  // INT_MIN: NCCL's own choice
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
  int traffic_class = INT_MIN;  // fills what would be padding before later fields
};
static_assert(sizeof(NcclConfig) == 48);

/// The functions: those of a loaded library, or of a replacement for it.
struct NcclFunctions {
  std::function<NcclStatus(int* version)> get_version;
  std::function<NcclStatus(NcclUniqueId* id)> get_unique_id;
  std::function<NcclStatus(NcclCommunicator* made, int num_ranks, NcclUniqueId id, int rank,
                           NcclConfig* config)>
      init_rank;
  std::function<NcclStatus(NcclCommunicator)> finalize;
  std::function<NcclStatus(NcclCommunicator)> destroy;
  std::function<NcclStatus(NcclCommunicator)> abort;
  std::function<NcclStatus(NcclCommunicator, NcclStatus* status)> get_async_error;
  std::function<NcclStatus()> group_start;
  std::function<NcclStatus()> group_end;
  std::function<NcclStatus(const void* from, size_t count, NcclDataType, int peer, NcclCommunicator,
                           Stream)>
      send;
  std::function<NcclStatus(void* to, size_t count, NcclDataType, int peer, NcclCommunicator,
                           Stream)>
      receive;
  std::function<const char*(NcclStatus)> get_error_string;
  std::function<const char*(NcclCommunicator)> get_last_error;
};

/// Places to search for libnccl.so.2, in this order.
struct NcclSearch {
  std::optional<std::string> only;  // this file only
  std::vector<std::string> files;   // names without a folder use the loader's search path
  bool asks_python = false;         // last: in the folder of the Python package nvidia.nccl
};

/// Only CPSCOPE_NCCL_LIBRARY if it is set; else the loader's path, the usual CUDA folders and the
/// Python package.
NcclSearch nccl_search_of_environment();

/// A loaded libnccl. It stays in memory until the process ends, because its threads may still run.
struct NcclLibrary {
  NcclFunctions functions;
  std::string path;
  int version = 0;  // in NCCL's form: 22809 is 2.28.9
};

/// Oldest version whose configuration has the fields above.
inline constexpr int kOldestNccl = 21800;

/// Errors (unavailable): no file found (the message names all places that were tried), too old, or
/// a function is missing.
Result<NcclLibrary> load_nccl(const NcclSearch& search);

/// 22809 -> "2.28.9".
std::string nccl_version_text(int version);

}  // namespace cpscope::kernels
