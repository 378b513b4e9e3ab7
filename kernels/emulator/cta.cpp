#include "kernels/emulator/cta.h"

#include "kernels/device/device.h"
#include "kernels/emulator/lent_memory.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>
#include <utility>

#include <fmt/format.h>

namespace cpscope::kernels::emulator {
namespace {

constexpr int32_t kWarpLanes = 32;
constexpr int32_t kMaxThreads = 1024;
constexpr int32_t kKibibytesPerSm = 228;  // of sm_90, 1 of them reserved for each CTA
constexpr uint32_t kArenaTail = 4096;     // checked memory after the shared memory
constexpr std::byte kPoison{0xff};        // every number of these bytes is a NaN
constexpr std::byte kTailByte{0xa5};
constexpr int64_t kMaxIdlePolls = 200'000;
constexpr uint32_t kRankChangeOdds = 64;  // one in this many steps gives a warp a new rank

thread_local Cta* running_cta = nullptr;

std::string short_file(const char* path) {
  const std::string text = path == nullptr ? "" : path;
  const size_t slash = text.find_last_of('/');
  return slash == std::string::npos ? text : text.substr(slash + 1);
}

}  // namespace

Settings& settings() {
  static Settings instance;
  return instance;
}

Counts& counts() {
  static Counts instance;
  return instance;
}

void clear_counts() { counts() = {}; }

Cta& current_cta() { return *running_cta; }

Cta::Cta(Index3 grid, Index3 block, int32_t threads, int32_t shared_bytes, int32_t ctas_per_sm,
         uint64_t seed, std::vector<std::unique_ptr<Fiber>>& fibers, std::vector<std::byte>& arena)
    : grid_(grid),
      block_(block),
      shared_bytes_(static_cast<uint32_t>(shared_bytes)),
      ctas_per_sm_(ctas_per_sm),
      random_(static_cast<uint32_t>(seed % 2147483646) + 1),
      fibers_(fibers),
      arena_(arena),
      threads_(static_cast<size_t>(threads)),
      warp_rank_(static_cast<size_t>((threads + kWarpLanes - 1) / kWarpLanes)),
      warps_(warp_rank_.size()) {
  for (uint32_t& rank : warp_rank_) rank = static_cast<uint32_t>(random_());
  landing_odds_ = 2u << (random_() % 12);
  arena_.resize(kSharedOffset + shared_bytes_ + kArenaTail);
  std::fill(arena_.begin(), arena_.end(), kPoison);
  std::fill(arena_.end() - kArenaTail, arena_.end(), kTailByte);
  std::fill(arena_.begin(), arena_.begin() + kSharedOffset, kTailByte);
  while (fibers_.size() < threads_.size()) fibers_.push_back(std::make_unique<Fiber>());
}

void Cta::thread_main(void* cta) {
  Cta& self = *static_cast<Cta*>(cta);
  try {
    (*self.body_)();
  } catch (...) {
    self.error_ = std::current_exception();
  }
  self.threads_[static_cast<size_t>(self.running_)].is_done = true;
  self.note_progress();
  while (true) self.fibers_[static_cast<size_t>(self.running_)]->suspend();
}

void Cta::run(const std::function<void()>& body) {
  body_ = &body;
  ready_.resize(threads_.size());
  std::iota(ready_.begin(), ready_.end(), 0);
  for (const int32_t thread : ready_)
    fibers_[static_cast<size_t>(thread)]->start(thread_main, this);
  size_t num_left = threads_.size();
  for (int64_t switches = 0; num_left > 0; ++switches) {
    if (settings().most_switches > 0 && switches > settings().most_switches) {
      throw DeviceError(fmt::format("emulator: CTA ({}, {}, {}) has not ended after {} switches",
                                    block_.x, block_.y, block_.z, switches));
    }
    land_some();
    if (ready_.empty()) {
      throw DeviceError(fmt::format("emulator: deadlock in CTA ({}, {}, {}), {} threads left\n{}",
                                    block_.x, block_.y, block_.z, num_left, describe_threads()));
    }
    running_ = pick_ready();
    Thread& thread = threads_[static_cast<size_t>(running_)];
    thread.is_polling = false;
    fibers_[static_cast<size_t>(running_)]->resume();
    ++counts().switches;
    if (error_) std::rethrow_exception(error_);
    if (thread.is_done) --num_left;
    if (thread.is_polling) ready_.push_back(running_);
  }
  check_end();
}

/// Removes one thread from the ready ones and returns it: of a few chosen at random, the one of the
/// warp with the highest rank. So some warps run far ahead of others, and these warps change.
int32_t Cta::pick_ready() {
  constexpr int kDraws = 4;
  size_t best = random_() % ready_.size();
  for (int i = 1; i < kDraws; ++i) {
    const size_t next = random_() % ready_.size();
    const auto rank = [&](size_t slot) {
      return warp_rank_[static_cast<size_t>(ready_[slot] / kWarpLanes)];
    };
    if (rank(next) > rank(best)) best = next;
  }
  if (random_() % kRankChangeOdds == 0)
    warp_rank_[random_() % warp_rank_.size()] = static_cast<uint32_t>(random_());
  const int32_t picked = ready_[best];
  ready_[best] = ready_.back();
  ready_.pop_back();
  return picked;
}

void Cta::sleep(WaitList& list, const Place& place) {
  threads_[static_cast<size_t>(running_)].place = place;
  list.push_back(running_);
  fibers_[static_cast<size_t>(running_)]->suspend();
}

void Cta::wake(WaitList& list) {
  ready_.insert(ready_.end(), list.begin(), list.end());
  list.clear();
  note_progress();
}

void Cta::poll(const Place& place) {
  if (++num_idle_polls_ > kMaxIdlePolls) fail("polling without end\n" + describe_threads(), place);
  Thread& thread = threads_[static_cast<size_t>(running_)];
  thread.place = place;
  thread.is_polling = true;
  fibers_[static_cast<size_t>(running_)]->suspend();
}

bool Cta::arrive(Meeting& meeting, int32_t size, int32_t member, void* argument,
                 const Place& place) {
  if (meeting.arrived == 0) {
    meeting.instruction = place.instruction;
    meeting.arguments.assign(static_cast<size_t>(size), nullptr);
  }
  if (std::strcmp(meeting.instruction, place.instruction) != 0) {
    fail(fmt::format(
             "threads that must stay together do not: {} of {} are at {}, this one at {}\n{}",
             meeting.arrived, size, meeting.instruction, place.instruction, describe_threads()),
         place);
  }
  meeting.arguments[static_cast<size_t>(member)] = argument;
  return ++meeting.arrived == size;
}

void Cta::release(Meeting& meeting) {
  meeting.arrived = 0;
  wake(meeting.waiting);
}

uint32_t Cta::address_of(const void* in_shared, const Place& place) const {
  const auto offset = static_cast<const std::byte*>(in_shared) - arena_.data();
  // One past the end is a valid address, but must not be read.
  if (offset < 0 || offset > static_cast<int64_t>(kSharedOffset + shared_bytes_))
    fail("an address outside the shared memory was taken", place);
  return static_cast<uint32_t>(offset);
}

std::byte* Cta::at(uint32_t address, int32_t bytes, int32_t alignment, const Place& place) {
  if (address < kSharedOffset ||
      uint64_t{address} + static_cast<uint64_t>(bytes) > kSharedOffset + shared_bytes_) {
    fail(fmt::format("shared memory [{}, {}) is outside the {} bytes of the launch",
                     int64_t{address} - kSharedOffset, int64_t{address} - kSharedOffset + bytes,
                     shared_bytes_),
         place);
  }
  if (address % static_cast<uint32_t>(alignment) != 0)
    fail(fmt::format("shared address {} is not on {} bytes", address, alignment), place);
  return arena_.data() + address;
}

void Cta::start_copy(uint32_t to, const void* from, const Place& place) {
  constexpr int32_t kCopyBytes = 16;
  std::byte* target = at(to, kCopyBytes, kCopyBytes, place);
  if (reinterpret_cast<uintptr_t>(from) % kCopyBytes != 0)
    fail("the source of an asynchronous copy is not on 16 bytes", place);
  if (from != nullptr && !is_lent(from, kCopyBytes))
    fail("an asynchronous copy reads outside device memory", place);
  // Until the copy has arrived, its target holds no usable data.
  std::fill(target, target + kCopyBytes, kPoison);
  copies_.push_back({from, to, running_, threads_[static_cast<size_t>(running_)].open_group});
}

void Cta::commit_copies() { ++threads_[static_cast<size_t>(running_)].open_group; }

void Cta::wait_for_copies(int32_t pending) {
  const int64_t first_kept = threads_[static_cast<size_t>(running_)].open_group - pending;
  size_t kept = 0;
  for (const CopyInFlight& copy : copies_) {
    if (copy.thread == running_ && copy.group < first_kept) {
      land(copy);
    } else {
      copies_[kept++] = copy;
    }
  }
  copies_.resize(kept);
}

void Cta::land(const CopyInFlight& copy) {
  constexpr size_t kCopyBytes = 16;
  std::byte* target = arena_.data() + copy.to;
  copy.from == nullptr ? std::memset(target, 0, kCopyBytes)
                       : std::memcpy(target, copy.from, kCopyBytes);
  ++counts().copies;
}

/// Completes asynchronous work in random order. When no thread can run, some must complete.
void Cta::land_some() {
  do {
    const size_t num_in_flight = copies_.size() + posted_.size();
    if (num_in_flight == 0) return;
    if (!ready_.empty() && random_() % landing_odds_ != 0) return;
    const size_t drawn = random_() % num_in_flight;
    if (drawn < copies_.size()) {
      land(copies_[drawn]);
      copies_[drawn] = copies_.back();
      copies_.pop_back();
    } else {
      const size_t slot = drawn - copies_.size();
      const std::function<void()> landing = std::move(posted_[slot]);
      posted_[slot] = std::move(posted_.back());
      posted_.pop_back();
      landing();
      note_progress();
    }
  } while (ready_.empty());
}

void Cta::check_end() const {
  const auto is_tail = [](std::byte value) { return value == kTailByte; };
  const bool is_intact = std::all_of(arena_.begin(), arena_.begin() + kSharedOffset, is_tail) &&
                         std::all_of(arena_.end() - kArenaTail, arena_.end(), is_tail);
  if (!is_intact) {
    throw DeviceError(
        fmt::format("emulator: CTA ({}, {}, {}) wrote outside its {} bytes of shared memory",
                    block_.x, block_.y, block_.z, shared_bytes_));
  }
  for (size_t i = 0; i < threads_.size(); ++i) {
    if (!fibers_[i]->is_stack_intact())
      throw DeviceError(fmt::format("emulator: thread {} left its stack", i));
  }
}

bool Cta::has_fault(Fault fault, const Place& place) const {
  const Settings& planted = settings();
  if (planted.fault != fault) return false;
  if (planted.fault_line != 0 && planted.fault_line != static_cast<int32_t>(place.line.line()))
    return false;
  ++counts().faults;
  return true;
}

void Cta::fail(const std::string& what, const Place& place) const {
  throw DeviceError(fmt::format("emulator: CTA ({}, {}, {}), thread {}, {}: {}", block_.x, block_.y,
                                block_.z, running_, describe_place(place), what));
}

std::string Cta::describe_place(const Place& place) const {
  std::string text = fmt::format("{} at {}:{}", place.instruction,
                                 short_file(place.line.file_name()), place.line.line());
  if (place.operand != 0) text += fmt::format(" ({})", place.operand);
  return text;
}

/// One line for adjacent threads that wait at the same place.
std::string Cta::describe_threads() const {
  std::string text;
  size_t first = 0;
  const auto describe = [&](size_t i) {
    if (threads_[i].is_done) return std::string("done");
    return (threads_[i].is_polling ? "polls " : "") + describe_place(threads_[i].place);
  };
  for (size_t i = 1; i <= threads_.size(); ++i) {
    if (i < threads_.size() && describe(i) == describe(first)) continue;
    text += fmt::format("  threads {}..{}: {}\n", first, i - 1, describe(first));
    first = i;
  }
  return text;
}

void run_grid(Index3 grid, int32_t threads, int32_t shared_bytes, const std::function<void()>& body,
              int32_t ctas_per_sm) {
  if (running_cta != nullptr) throw DeviceError("emulator: a launch inside a launch");
  if (grid.x < 1 || grid.y < 1 || grid.z < 1 || threads < 1 || threads > kMaxThreads ||
      shared_bytes < 0 || ctas_per_sm < 1 ||
      shared_bytes > 1024 * kKibibytesPerSm / ctas_per_sm - 1024) {
    throw DeviceError(
        fmt::format("emulator: no device takes a launch of {} x {} x {} CTAs, {} threads, {} bytes "
                    "of shared memory, {} CTAs a multiprocessor",
                    grid.x, grid.y, grid.z, threads, shared_bytes, ctas_per_sm));
  }
  // Threads that drive separate ranks run one at a time.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  static std::vector<std::unique_ptr<Fiber>> fibers;
  static std::vector<std::byte> arena;
  std::vector<Index3> blocks;
  for (int32_t z = 0; z < grid.z; ++z) {
    for (int32_t y = 0; y < grid.y; ++y) {
      for (int32_t x = 0; x < grid.x; ++x) blocks.push_back({x, y, z});
    }
  }
  std::minstd_rand random(static_cast<uint32_t>(settings().seed % 2147483646) + 1);
  std::shuffle(blocks.begin(), blocks.end(), random);
  struct ClearRunning {
    ~ClearRunning() { running_cta = nullptr; }
  } clear_running;
  for (const Index3& block : blocks) {
    Cta cta(grid, block, threads, shared_bytes, ctas_per_sm, settings().seed * 1'000'003 + random(),
            fibers, arena);
    running_cta = &cta;
    cta.run(body);
    ++counts().ctas;
  }
}

}  // namespace cpscope::kernels::emulator
