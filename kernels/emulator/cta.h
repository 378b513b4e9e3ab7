#pragma once

#include "kernels/emulator/fiber.h"
#include "kernels/emulator/settings.h"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <random>
#include <source_location>
#include <string>
#include <typeindex>
#include <utility>
#include <vector>

namespace cpscope::kernels::emulator {

struct Index3 {
  int32_t x = 0;
  int32_t y = 0;
  int32_t z = 0;
};

/// Position of a thread: an instruction of the emulated device and the line that called it.
struct Place {
  const char* instruction = "start";
  int64_t operand = 0;  // distinguishes two waits of one line: a barrier's number or address
  std::source_location line = {};
};

/// Threads that sleep until something changes. The thread that changes it calls Cta::wake.
using WaitList = std::vector<int32_t>;

/// A point that a group of threads reaches together: barriers and collective instructions.
struct Meeting {
  int32_t arrived = 0;
  const char* instruction = nullptr;  // of the first thread to arrive
  std::vector<void*> arguments;       // [member], of the threads that have arrived
  WaitList waiting;
};

/// Asynchronous copy of 16 bytes into shared memory that has not arrived yet.
struct CopyInFlight {
  const void* from = nullptr;  // null: zeros
  uint32_t to = 0;
  int32_t thread = 0;
  int64_t group = 0;  // of its thread
};

/// One CTA while it runs: its threads as fibers, its shared memory and its asynchronous work. Only
/// one CTA runs at a time. The order of its threads, and the time when asynchronous work completes,
/// are random numbers from the seed. Errors are thrown as a DeviceError out of run_grid().
///
/// To add instructions: state with the lifetime of the CTA is stored in extension<T>(). A wait is
/// `while (!condition) cta.sleep(list, place)`; the thread that makes the condition true calls
/// cta.wake(list). Work that completes later goes through post(). Instructions that a group
/// executes together go through meet().
class Cta {
 public:
  Cta(Index3 grid, Index3 block, int32_t threads, int32_t shared_bytes, int32_t ctas_per_sm,
      uint64_t seed, std::vector<std::unique_ptr<Fiber>>& fibers, std::vector<std::byte>& arena);

  /// Runs body() in every thread to the end.
  void run(const std::function<void()>& body);

  // ---- calls of the running thread ----

  int32_t thread() const { return running_; }
  int32_t warp() const { return running_ / 32; }
  int32_t lane() const { return running_ % 32; }
  int32_t num_threads() const { return static_cast<int32_t>(threads_.size()); }
  /// Registers that a thread has at launch.
  int32_t num_registers() const { return 65'536 / (ctas_per_sm_ * num_threads()) / 8 * 8; }
  Index3 grid() const { return grid_; }
  Index3 block() const { return block_; }

  /// Sleeps until `list` is woken. The caller must test its condition again: it may be false again.
  void sleep(WaitList& list, const Place& place);
  void wake(WaitList& list);
  /// Lets other threads run, for a loop that polls memory. Endless polling counts as a deadlock
  /// too.
  void poll(const Place& place);
  /// Records that memory polled by other threads has changed.
  void note_progress() { num_idle_polls_ = 0; }
  /// Fails the launch.
  [[noreturn]] void fail(const std::string& what, const Place& place) const;

  /// Waits until `size` members have called it with the same instruction; the last one executes
  /// execute(arguments of all members). Results are written to the arguments, which are on the
  /// stacks of the members.
  template <class Argument, class Execute>
  void meet(Meeting& meeting, int32_t size, int32_t member, Argument& argument, const Place& place,
            Execute execute) {
    if (arrive(meeting, size, member, &argument, place)) {
      execute(reinterpret_cast<Argument* const*>(meeting.arguments.data()));
      release(meeting);
    } else {
      sleep(meeting.waiting, place);
    }
  }

  Meeting& whole_cta() { return whole_cta_; }
  Meeting& own_warp() { return warps_[static_cast<size_t>(warp())]; }

  // ---- shared memory ----

  /// Start of the dynamic shared memory.
  std::byte* shared() { return arena_.data() + kSharedOffset; }
  uint32_t address_of(const void* in_shared, const Place& place) const;
  /// Memory behind `bytes` bytes at an address; fails outside the shared memory that the launch
  /// requested, and for a wrong alignment.
  std::byte* at(uint32_t address, int32_t bytes, int32_t alignment, const Place& place);

  // ---- asynchronous work ----

  /// Calls `land` at some later time, between two steps of threads.
  void post(std::function<void()> land) { posted_.push_back(std::move(land)); }

  void start_copy(uint32_t to, const void* from, const Place& place);
  void commit_copies();
  /// Completes all copies of this thread except those of its `pending` youngest groups.
  void wait_for_copies(int32_t pending);

  // ---- for instructions defined elsewhere ----

  /// State of type T, made at its first use in this CTA.
  template <class T>
  T& extension() {
    const std::type_index type(typeid(T));
    for (const auto& [known, state] : extensions_)
      if (known == type) return *static_cast<T*>(state.get());
    extensions_.emplace_back(type, std::make_shared<T>());
    return *static_cast<T*>(extensions_.back().second.get());
  }

  /// True if the planted fault applies to this call.
  bool has_fault(Fault fault, const Place& place) const;

 private:
  // Aligned to 128 bytes, as the kernels require, and to no more.
  static constexpr uint32_t kSharedOffset = 128;

  struct Thread {
    bool is_done = false;
    bool is_polling = false;
    Place place;
    int64_t open_group = 0;  // of asynchronous copies
  };

  bool arrive(Meeting& meeting, int32_t size, int32_t member, void* argument, const Place& place);
  void release(Meeting& meeting);
  static void thread_main(void* cta);
  int32_t pick_ready();
  void land_some();
  void land(const CopyInFlight& copy);
  void check_end() const;
  std::string describe_threads() const;
  std::string describe_place(const Place& place) const;

  Index3 grid_;
  Index3 block_;
  uint32_t shared_bytes_;
  int32_t ctas_per_sm_;
  std::minstd_rand random_;
  std::vector<std::unique_ptr<Fiber>>& fibers_;
  std::vector<std::byte>& arena_;
  const std::function<void()>* body_ = nullptr;
  std::vector<Thread> threads_;
  std::vector<int32_t> ready_;
  std::vector<uint32_t> warp_rank_;  // the ready warp of the highest rank usually runs first
  int32_t running_ = 0;
  int64_t num_idle_polls_ = 0;
  uint32_t landing_odds_ = 2;  // one in this many steps completes some asynchronous work
  std::exception_ptr error_;
  Meeting whole_cta_;
  std::vector<Meeting> warps_;
  std::vector<CopyInFlight> copies_;
  std::vector<std::function<void()>> posted_;
  std::vector<std::pair<std::type_index, std::shared_ptr<void>>> extensions_;  // a few
};

/// The running CTA. Only for code called by a kernel.
Cta& current_cta();

/// Runs a grid of CTAs, one after another, in random order. ctas_per_sm: CTAs that share the memory
/// and the registers of a multiprocessor. Throws DeviceError.
void run_grid(Index3 grid, int32_t threads, int32_t shared_bytes, const std::function<void()>& body,
              int32_t ctas_per_sm = 1);

}  // namespace cpscope::kernels::emulator
