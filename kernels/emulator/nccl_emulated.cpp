#include "kernels/emulator/nccl_emulated.h"

#include "kernels/device/device.h"

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include <fmt/format.h>

namespace cpscope::kernels {

/// One rank's part of a communicator in the emulator.
struct NcclCommunicatorTag {
  int32_t rank = 0;
  int32_t num_ranks = 0;
  bool is_joined = false;   // all ranks have joined
  bool is_hanging = false;  // by a planted fault
  int64_t num_groups = 0;
  int64_t num_open = 0;  // sends and receives whose other half is missing
  NcclStatus status = NcclStatus::success;
  std::string last_error;
};

namespace emulator {

using Clock = std::chrono::steady_clock;

class NcclEmulated::State {
 public:
  explicit State(std::chrono::milliseconds patience) : patience_(patience) {}

  std::mutex mutex;
  NcclFault fault;
  Counts counts;

  NcclStatus init_rank(NcclCommunicator* made, int num_ranks, int rank) {
    auto tag = std::make_unique<NcclCommunicatorTag>();
    tag->rank = rank;
    tag->num_ranks = num_ranks;
    *made = tag.get();
    communicators_[rank] = std::move(tag);
    ++counts.communicators;
    ++counts.open;
    return NcclStatus::in_progress;
  }

  void group_start() { ++group().depth; }

  NcclStatus group_end() {
    Group& mine = group();
    if (mine.depth == 0) return NcclStatus::invalid_usage;
    if (--mine.depth > 0) return NcclStatus::success;
    std::vector<Posted> posted = std::exchange(mine.posted, {});
    std::vector<NcclCommunicator> met;
    for (const Posted& one : posted) {
      if (std::find(met.begin(), met.end(), one.owner) == met.end()) met.push_back(one.owner);
    }
    for (const NcclCommunicator communicator : met) begin_group(*communicator);
    for (const Posted& one : posted) {
      if (one.owner->is_hanging) continue;
      ++one.owner->num_open;
      (one.is_send ? halves_[one.key].sends : halves_[one.key].receives).push_back(one);
      match(one.key);
    }
    return NcclStatus::in_progress;
  }

  NcclStatus post(bool is_send, void* data, size_t bytes, int peer, NcclCommunicator owner) {
    if (group().depth == 0) return NcclStatus::invalid_usage;  // cpscope always uses groups
    if (peer < 0 || peer >= owner->num_ranks || peer == owner->rank) {
      owner->last_error = fmt::format("rank {} has no peer {}", owner->rank, peer);
      return NcclStatus::invalid_argument;
    }
    const Key key = is_send ? Key{owner->rank, peer} : Key{peer, owner->rank};
    group().posted.push_back({owner, is_send, data, bytes, key, Clock::now()});
    return NcclStatus::success;
  }

  NcclStatus status_of(NcclCommunicator communicator) {
    const bool is_joined = communicators_.size() == static_cast<size_t>(communicator->num_ranks);
    if (communicator->status != NcclStatus::success) return communicator->status;
    if (communicator->is_hanging || !is_joined) return NcclStatus::in_progress;
    if (communicator->num_open == 0) return NcclStatus::success;
    complain_of_lonely(communicator);
    return communicator->status == NcclStatus::success ? NcclStatus::in_progress
                                                       : communicator->status;
  }

  void close(NcclCommunicator communicator, bool is_abort) {
    --counts.open;
    if (is_abort) ++counts.aborts;
    // Kept, because others may still read it; none of its work is executed any more.
    communicator->status = NcclStatus::internal_error;
    communicator->last_error = "the communicator was closed";
    for (auto& [key, halves] : halves_) {
      std::erase_if(halves.sends, [&](const Posted& one) { return one.owner == communicator; });
      std::erase_if(halves.receives, [&](const Posted& one) { return one.owner == communicator; });
    }
  }

 private:
  struct Key {
    int32_t from = 0, to = 0;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Posted {
    NcclCommunicator owner = nullptr;
    bool is_send = false;
    void* data = nullptr;
    size_t bytes = 0;
    Key key;
    Clock::time_point since;
  };
  struct Halves {
    std::deque<Posted> sends, receives;
  };
  /// A thread's open group.
  struct Group {
    int32_t depth = 0;
    std::vector<Posted> posted;
  };

  Group& group() { return groups_[std::this_thread::get_id()]; }

  void begin_group(NcclCommunicatorTag& communicator) {
    const bool is_hit = fault.kind != NcclFault::Kind::none && fault.rank == communicator.rank &&
                        fault.group == communicator.num_groups;
    ++communicator.num_groups;
    ++counts.groups;
    if (!is_hit) return;
    if (fault.kind == NcclFault::Kind::throws) throw DeviceError("a planted failure");
    if (fault.kind == NcclFault::Kind::hang) {
      communicator.is_hanging = true;
      return;
    }
    communicator.status = NcclStatus::remote_error;
    communicator.last_error = "a planted error";
  }

  void match(const Key& key) {
    Halves& halves = halves_[key];
    while (!halves.sends.empty() && !halves.receives.empty()) {
      const Posted send = halves.sends.front(), receive = halves.receives.front();
      halves.sends.pop_front();
      halves.receives.pop_front();
      if (send.bytes != receive.bytes) {
        const std::string what = fmt::format("rank {} sends {} bytes to rank {}, which receives {}",
                                             key.from, send.bytes, key.to, receive.bytes);
        for (const NcclCommunicator end : {send.owner, receive.owner}) {
          end->status = NcclStatus::invalid_usage;
          end->last_error = what;
        }
        return;
      }
      copy_on_device(receive.data, send.data, static_cast<int64_t>(send.bytes), nullptr);
      --send.owner->num_open;
      --receive.owner->num_open;
      ++counts.messages;
      counts.bytes += static_cast<int64_t>(send.bytes);
    }
  }

  void complain_of_lonely(NcclCommunicator communicator) {
    for (const auto& [key, halves] : halves_) {
      for (const std::deque<Posted>* posted : {&halves.sends, &halves.receives}) {
        for (const Posted& one : *posted) {
          if (one.owner != communicator || Clock::now() - one.since < patience_) continue;
          communicator->status = NcclStatus::invalid_usage;
          communicator->last_error =
              fmt::format("{} of {} bytes from rank {} to rank {} found no {}",
                          one.is_send ? "a send" : "a receive", one.bytes, key.from, key.to,
                          one.is_send ? "receive" : "send");
          return;
        }
      }
    }
  }

  const std::chrono::milliseconds patience_;
  std::map<int32_t, std::unique_ptr<NcclCommunicatorTag>> communicators_;  // [rank]
  std::map<Key, Halves> halves_;
  std::map<std::thread::id, Group> groups_;
};

NcclEmulated::NcclEmulated(std::chrono::milliseconds patience)
    : state_(std::make_shared<State>(patience)) {}

void NcclEmulated::plant(const NcclFault& fault) {
  const std::lock_guard lock(state_->mutex);
  state_->fault = fault;
}

NcclEmulated::Counts NcclEmulated::counts() const {
  const std::lock_guard lock(state_->mutex);
  return state_->counts;
}

NcclFunctions NcclEmulated::functions() const {
  const std::shared_ptr<State> state = state_;
  // Every call holds the lock.
  const auto locked = [state](auto body) {
    return [state, body](auto... arguments) {
      const std::lock_guard lock(state->mutex);
      return body(*state, arguments...);
    };
  };
  NcclFunctions f;
  f.get_version = [](int* version) { return *version = 22809, NcclStatus::success; };
  f.get_unique_id = [](NcclUniqueId* id) { return id->bytes.fill(1), NcclStatus::success; };
  f.init_rank = locked([](State& s, NcclCommunicator* made, int num_ranks, NcclUniqueId id,
                          int rank, NcclConfig* config) {
    if (id.bytes[0] != 1 || config->is_blocking != 0) return NcclStatus::invalid_argument;
    return s.init_rank(made, num_ranks, rank);
  });
  f.finalize = [](NcclCommunicator) { return NcclStatus::success; };
  f.destroy = locked([](State& s, NcclCommunicator communicator) {
    return s.close(communicator, false), NcclStatus::success;
  });
  f.abort = locked([](State& s, NcclCommunicator communicator) {
    return s.close(communicator, true), NcclStatus::success;
  });
  f.get_async_error = locked([](State& s, NcclCommunicator communicator, NcclStatus* status) {
    return *status = s.status_of(communicator), NcclStatus::success;
  });
  f.group_start = locked([](State& s) { return s.group_start(), NcclStatus::success; });
  f.group_end = locked([](State& s) { return s.group_end(); });
  f.send = locked([](State& s, const void* from, size_t bytes, NcclDataType, int peer,
                     NcclCommunicator communicator, Stream) {
    return s.post(true, const_cast<void*>(from), bytes, peer, communicator);
  });
  f.receive = locked([](State& s, void* to, size_t bytes, NcclDataType, int peer,
                        NcclCommunicator communicator,
                        Stream) { return s.post(false, to, bytes, peer, communicator); });
  f.get_error_string = [](NcclStatus status) {
    return status == NcclStatus::invalid_usage ? "invalid usage" : "an emulated error";
  };
  f.get_last_error = [](NcclCommunicator communicator) {
    return communicator == nullptr ? "" : communicator->last_error.c_str();
  };
  return f;
}

}  // namespace emulator
}  // namespace cpscope::kernels
