#include "kernels/device/device.h"
#include "kernels/emulator/lent_memory.h"
#include "kernels/emulator/settings.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <new>

#include <fmt/format.h>

// The device of kernels/device/device.h on host memory. All work is done during the calls, in their
// order. Memory is allocated between guard bytes and filled with NaN. Accesses outside allocated
// memory, and overwritten guards, are reported by the next call that may throw.

namespace cpscope::kernels {

struct StreamTag {
  Urgency urgency = Urgency::usual;
};

struct EventTag {
  bool measures_time = false;
  bool is_recorded = false;
  std::chrono::steady_clock::time_point time;
};

namespace {

constexpr int64_t kTotalBytes = int64_t{16} << 30;
constexpr int64_t kGuardBytes = 256;   // also the alignment of allocations
constexpr uint8_t kPoisonByte = 0xff;  // every number of these bytes is a NaN

struct Lent {
  std::unique_ptr<std::byte[]> storage;
  int64_t bytes = 0;
  bool is_host = false;
};

/// Allocated memory, by address.
struct Memory {
  std::mutex mutex;
  std::map<std::byte*, Lent> lent;
  int64_t device_bytes = 0;
  std::string failure;  // first one not yet reported
};

Memory& memory() {
  static Memory instance;
  return instance;
}

bool is_guard_intact(const std::byte* begin) {
  return std::all_of(begin, begin + kGuardBytes,
                     [](std::byte value) { return value == std::byte{kPoisonByte}; });
}

/// Records overwritten guards of one allocation.
void check_guards(const std::byte* begin, const Lent& lent) {
  std::string& failure = memory().failure;
  if (!failure.empty()) return;
  if (!is_guard_intact(begin - kGuardBytes)) {
    failure = fmt::format("emulator: bytes before a buffer of {} bytes were written", lent.bytes);
  } else if (!is_guard_intact(begin + lent.bytes)) {
    failure = fmt::format("emulator: bytes behind a buffer of {} bytes were written", lent.bytes);
  }
}

/// Throws the error of any allocation.
void check_all_guards() {
  const std::lock_guard lock(memory().mutex);
  for (const auto& [begin, lent] : memory().lent) check_guards(begin, lent);
  if (memory().failure.empty()) return;
  std::string failure;
  std::swap(failure, memory().failure);
  throw DeviceError(failure);
}

void* lend(int64_t bytes, bool is_host) {
  const std::lock_guard lock(memory().mutex);
  if (!is_host && bytes > kTotalBytes - memory().device_bytes)
    throw DeviceError(fmt::format("emulator: out of memory, {} bytes requested", bytes));
  Lent lent{nullptr, std::max<int64_t>(bytes, 0), is_host};
  const size_t all_bytes = static_cast<size_t>(lent.bytes + 3 * kGuardBytes);
  lent.storage = std::make_unique_for_overwrite<std::byte[]>(all_bytes);
  std::memset(lent.storage.get(), kPoisonByte, all_bytes);
  const uintptr_t first = reinterpret_cast<uintptr_t>(lent.storage.get()) + kGuardBytes;
  const uintptr_t aligned = (first + kGuardBytes - 1) / kGuardBytes * kGuardBytes;
  auto* begin = lent.storage.get() + (aligned - reinterpret_cast<uintptr_t>(lent.storage.get()));
  if (!is_host) memory().device_bytes += lent.bytes;
  memory().lent.emplace(begin, std::move(lent));
  return begin;
}

void give_back(void* begin) noexcept {
  if (begin == nullptr) return;
  const std::lock_guard lock(memory().mutex);
  const auto found = memory().lent.find(static_cast<std::byte*>(begin));
  if (found == memory().lent.end()) {
    if (memory().failure.empty())
      memory().failure = "emulator: memory given back that was not lent";
    return;
  }
  check_guards(found->first, found->second);
  if (!found->second.is_host) memory().device_bytes -= found->second.bytes;
  memory().lent.erase(found);
}

/// Throws unless these bytes are inside one allocation of device memory.
void check_device_range(const void* begin, int64_t bytes, const char* call) {
  if (bytes != 0 && !emulator::is_lent(begin, bytes))
    throw DeviceError(fmt::format("emulator: {} of {} bytes outside device memory", call, bytes));
}

void copy_bytes(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) std::memmove(to, from, static_cast<size_t>(bytes));
}

}  // namespace

bool emulator::is_lent(const void* begin, int64_t bytes) {
  const std::lock_guard lock(memory().mutex);
  auto* first = static_cast<std::byte*>(const_cast<void*>(begin));
  auto found = memory().lent.upper_bound(first);
  return found != memory().lent.begin() && bytes > 0 && !(--found)->second.is_host &&
         first + bytes <= found->first + found->second.bytes;
}

Result<int> count_devices() { return 1; }

DeviceInfo describe_device(int device) {
  select_device(device);
  const std::lock_guard lock(memory().mutex);
  return {.name = "emulator",
          .total_bytes = kTotalBytes,
          .free_bytes = kTotalBytes - memory().device_bytes,
          .num_sms = 2,
          .compute_capability = emulator::settings().compute_capability};
}

void select_device(int device) {
  if (device != 0) throw DeviceError(fmt::format("emulator: there is no device {}", device));
}

void* allocate_bytes(int64_t bytes) { return lend(bytes, false); }
void free_bytes(void* lent) noexcept { give_back(lent); }
void* allocate_host_bytes(int64_t bytes) { return lend(bytes, true); }
void free_host_bytes(void* lent) noexcept { give_back(lent); }

void copy_to_device(void* to, const void* from, int64_t bytes, Stream /*stream*/) {
  check_device_range(to, bytes, "copy_to_device");
  copy_bytes(to, from, bytes);
}

void copy_to_host(void* to, const void* from, int64_t bytes, Stream /*stream*/) {
  check_device_range(from, bytes, "copy_to_host");
  copy_bytes(to, from, bytes);
}

void copy_on_device(void* to, const void* from, int64_t bytes, Stream /*stream*/) {
  check_device_range(to, bytes, "copy_on_device");
  check_device_range(from, bytes, "copy_on_device");
  copy_bytes(to, from, bytes);
}

void copy_byte_rows(const ByteRows& rows, Stream /*stream*/) {
  if (rows.row_bytes == 0 || rows.num_rows == 0) return;
  for (int64_t i = 0; i < rows.num_blocks * rows.num_rows; ++i) {
    const int64_t block = i / rows.num_rows, row = i % rows.num_rows;
    auto* to =
        static_cast<std::byte*>(rows.to) + (block * rows.to_block_rows + row) * rows.to_pitch;
    const auto* from = static_cast<const std::byte*>(rows.from) +
                       (block * rows.from_block_rows + row) * rows.from_pitch;
    check_device_range(to, rows.row_bytes, "copy_byte_rows");
    check_device_range(from, rows.row_bytes, "copy_byte_rows");
    copy_bytes(to, from, rows.row_bytes);
  }
}

bool reach_device(int /*peer*/) { return true; }
bool works_at_once() { return true; }

void fill_bytes(void* begin, uint8_t value, int64_t bytes, Stream /*stream*/) {
  check_device_range(begin, bytes, "fill_bytes");
  if (bytes > 0) std::memset(begin, value, static_cast<size_t>(bytes));
}

Stream make_stream(Urgency urgency) { return new StreamTag{urgency}; }
void destroy_stream(Stream stream) noexcept { delete stream; }
void wait_for_stream(Stream /*stream*/) { check_all_guards(); }

bool is_stream_done(Stream /*stream*/) {
  check_all_guards();
  return true;
}

Event make_event(bool measures_time) { return new EventTag{measures_time, false, {}}; }
void destroy_event(Event event) noexcept { delete event; }

void record_event(Event event, Stream /*stream*/) {
  event->is_recorded = true;
  event->time = std::chrono::steady_clock::now();
}

bool is_event_done(Event /*event*/) {
  check_all_guards();
  return true;
}

void wait_for_event(Stream /*stream*/, Event event) {
  // A real device would continue without waiting, and the order would be lost.
  if (!event->is_recorded)
    throw DeviceError("emulator: a stream waits for an event that was not recorded");
}

void wait_for_flag(Stream /*stream*/, const int32_t* flag, int32_t value) {
  if (*flag != value) throw DeviceError("emulator: a stream waits for a flag that is never set");
}

double milliseconds_between(Event first, Event last) {
  for (const Event event : {first, last}) {
    if (!event->measures_time || !event->is_recorded)
      throw DeviceError("emulator: the time of an event that measured none was requested");
  }
  return std::chrono::duration<double, std::milli>(last->time - first->time).count();
}

void check_launch(const char* /*what*/) { check_all_guards(); }

}  // namespace cpscope::kernels
