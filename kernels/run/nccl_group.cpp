#include "kernels/run/nccl_group.h"

#include "kernels/device/device.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>
#include <utility>

#include <fmt/format.h>

namespace cpscope::kernels {

namespace {

// How long a loop polls before it sleeps. A sleep takes at least 70 us, which would be visible in
// the times of passes.
constexpr std::chrono::milliseconds kAwake{50};
constexpr std::chrono::microseconds kPause{20};
constexpr std::chrono::seconds kFinalizeWithin{10};

}  // namespace

void PollPause::wait() {
  if (std::chrono::steady_clock::now() - start_ < kAwake) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(kPause);
  }
}

NcclGroup::NcclGroup(NcclFunctions nccl, ProcessGroup& group, std::vector<int> devices)
    : nccl_(std::move(nccl)), group_(group), devices_(std::move(devices)) {
  exchange_ranks();
  const NcclUniqueId id = exchange_id();
  try {
    connect(id);
  } catch (...) {
    abort();
    throw;
  }
}

NcclGroup::~NcclGroup() {
  {
    const std::lock_guard lock(abort_mutex_);
    if (is_aborted_) return;
  }
  for (const NcclCommunicator communicator : communicators_) nccl_.finalize(communicator);
  if (!settles_within(kFinalizeWithin)) {
    abort();
    return;
  }
  for (const NcclCommunicator communicator : communicators_) nccl_.destroy(communicator);
}

/// Waits until the communicators settle. At the end of the group no process is left to report a
/// failure to.
bool NcclGroup::settles_within(std::chrono::seconds limit) noexcept {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  PollPause pause;
  try {
    while (!is_settled()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      pause.wait();
    }
  } catch (const DeviceError&) {
    return false;
  }
  return true;
}

void NcclGroup::exchange_ranks() {
  const std::vector<Bytes> counts =
      value_or_stop(group_.gather({static_cast<uint8_t>(devices_.size() & 0xff)}));
  Bytes all;
  for (const Bytes& count : counts) all.insert(all.end(), count.begin(), count.end());
  all = value_or_stop(group_.broadcast(all));
  counts_.assign(all.begin(), all.end());
  first_rank_ = ranks_of_process(group_.process()).first;
  num_ranks_ = std::accumulate(counts_.begin(), counts_.end(), 0);
  group_.set_name(devices_.size() == 1
                      ? fmt::format("rank {}", first_rank_)
                      : fmt::format("ranks {} to {}", first_rank_, end_rank() - 1));
}

RankRange NcclGroup::ranks_of_process(int32_t process) const {
  const int32_t first = std::accumulate(counts_.begin(), counts_.begin() + process, 0);
  return {first, first + counts_[static_cast<size_t>(process)]};
}

NcclUniqueId NcclGroup::exchange_id() {
  NcclUniqueId id;
  if (group_.process() == 0) demand(nccl_.get_unique_id(&id), nullptr, "ncclGetUniqueId");
  const Bytes bytes = value_or_stop(group_.broadcast({id.bytes.begin(), id.bytes.end()}));
  std::copy(bytes.begin(), bytes.end(), id.bytes.begin());
  return id;
}

void NcclGroup::connect(const NcclUniqueId& id) {
  communicators_.resize(devices_.size(), nullptr);
  demand(nccl_.group_start(), nullptr, "ncclGroupStart");
  for (size_t d = 0; d < devices_.size(); ++d) {
    select_device(devices_[d]);
    NcclConfig config;
    demand(nccl_.init_rank(&communicators_[d], num_ranks_, id, first_rank_ + static_cast<int>(d),
                           &config),
           nullptr, "ncclCommInitRankConfig");
  }
  demand(nccl_.group_end(), nullptr, "ncclGroupEnd");
  wait_until_settled();
}

void NcclGroup::demand(NcclStatus status, NcclCommunicator communicator, const char* call) const {
  if (status == NcclStatus::success || status == NcclStatus::in_progress) return;
  const char* detail = nccl_.get_last_error(communicator);
  const bool has_detail = detail != nullptr && *detail != '\0';
  throw DeviceError(fmt::format("{} failed: {}{}{}", call, nccl_.get_error_string(status),
                                has_detail ? ": " : "", has_detail ? detail : ""));
}

bool NcclGroup::is_settled() {
  if (const std::optional<std::string> why = group_.why_stopped()) throw GroupStopped(*why);
  group_.move();
  bool is_done = true;
  for (const NcclCommunicator communicator : communicators_) {
    NcclStatus status = NcclStatus::success;
    demand(nccl_.get_async_error(communicator, &status), communicator, "ncclCommGetAsyncError");
    demand(status, communicator, "NCCL");
    is_done = is_done && status == NcclStatus::success;
  }
  return is_done;
}

void NcclGroup::wait_until_settled() {
  PollPause pause;
  while (!is_settled()) pause.wait();
}

void NcclGroup::check() { is_settled(); }

void NcclGroup::begin() { demand(nccl_.group_start(), nullptr, "ncclGroupStart"); }

void NcclGroup::send(int32_t rank, int32_t peer, const void* from, int64_t bytes, Stream stream) {
  const NcclCommunicator communicator = communicator_of(rank);
  demand(
      nccl_.send(from, static_cast<size_t>(bytes), NcclDataType::uint8, peer, communicator, stream),
      communicator, "ncclSend");
}

void NcclGroup::receive(int32_t rank, int32_t peer, void* to, int64_t bytes, Stream stream) {
  const NcclCommunicator communicator = communicator_of(rank);
  demand(nccl_.receive(to, static_cast<size_t>(bytes), NcclDataType::uint8, peer, communicator,
                       stream),
         communicator, "ncclRecv");
}

void NcclGroup::end() {
  demand(nccl_.group_end(), nullptr, "ncclGroupEnd");
  wait_until_settled();
}

void NcclGroup::abort() noexcept {
  const std::lock_guard lock(abort_mutex_);
  if (std::exchange(is_aborted_, true)) return;
  for (const NcclCommunicator communicator : communicators_) {
    if (communicator != nullptr) nccl_.abort(communicator);
  }
}

}  // namespace cpscope::kernels
