#pragma once

#include "kernels/group/process_group.h"
#include "kernels/run/nccl_library.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cpscope::kernels {

/// The failure when a process of the group stopped, not necessarily this one.
class GroupStopped : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

/// Returns the value; throws GroupStopped with the Error's message if there is none.
template <class T>
T value_or_stop(Result<T> result) {
  if (!result) throw GroupStopped(result.error().complaints.front().what);
  return std::move(result).value();
}

/// Ranks [first, end) of one process.
struct RankRange {
  int32_t first = 0;
  int32_t end = 0;
};

/// NCCL among all devices of all processes, one rank per device. It is made once and used by every
/// plan: a plan of fewer ranks uses the first ones. Ranks are counted process by process. Rows are
/// sent only as bytes by grouped sends and receives, so a plan's transfers are exactly the data on
/// the wire; collective transfers of a plan are groups of sends and receives as well.
///
/// Calls return at once and are polled, so that a dead peer never blocks this process. Failures are
/// thrown as DeviceError, a stopped group as GroupStopped. One thread drives all devices of a
/// process.
class NcclGroup {
 public:
  /// Collective over the processes. `devices`: devices of this process. `group` must outlive the
  /// result.
  NcclGroup(NcclFunctions nccl, ProcessGroup& group, std::vector<int> devices);
  /// After an abort does nothing; else waits for running transfers.
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  int32_t num_ranks() const { return num_ranks_; }
  RankRange ranks_of_process(int32_t process) const;
  int32_t first_rank() const { return first_rank_; }
  int32_t end_rank() const { return first_rank_ + static_cast<int32_t>(devices_.size()); }
  bool is_here(int32_t rank) const { return rank >= first_rank() && rank < end_rank(); }
  int device_of(int32_t rank) const { return devices_[static_cast<size_t>(rank - first_rank_)]; }
  ProcessGroup& processes() { return group_; }

  /// Begins a group. Sends and receives between begin and end wait for each other, in any order.
  void begin();
  void send(int32_t rank, int32_t peer, const void* from, int64_t bytes, Stream stream);
  void receive(int32_t rank, int32_t peer, void* to, int64_t bytes, Stream stream);
  /// Ends the group; all its work is then on its streams.
  void end();

  /// Throws if a communicator failed or the group of processes stopped; else reports that this
  /// process is alive.
  void check();
  /// Ends all running transfers; the group cannot be used afterwards. May be called from any
  /// thread.
  void abort() noexcept;

 private:
  void exchange_ranks();
  NcclUniqueId exchange_id();
  void connect(const NcclUniqueId& id);
  /// True if all communicators have finished the requested calls; throws as check does.
  bool is_settled();
  void wait_until_settled();
  bool settles_within(std::chrono::seconds limit) noexcept;
  void demand(NcclStatus status, NcclCommunicator communicator, const char* call) const;
  NcclCommunicator communicator_of(int32_t rank) const {
    return communicators_[static_cast<size_t>(rank - first_rank_)];
  }

  const NcclFunctions nccl_;
  ProcessGroup& group_;
  const std::vector<int> devices_;
  std::vector<NcclCommunicator> communicators_;  // [rank - first_rank_]
  std::vector<int32_t> counts_;                  // [process] devices
  int32_t first_rank_ = 0;
  int32_t num_ranks_ = 0;
  std::mutex abort_mutex_;
  bool is_aborted_ = false;
};

/// A pause in a loop that waits for a device: none at first, then longer ones, so that short waits
/// stay short and long ones cost little.
class PollPause {
 public:
  void wait();

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace cpscope::kernels
