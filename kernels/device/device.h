#pragma once

#include "sim/base/result.h"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>

namespace cpscope::kernels {

/// Failure of the device or its driver. Thrown inside kernels, caught once at the executor's
/// boundary, where it becomes an Error.
class DeviceError : public std::exception {
 public:
  explicit DeviceError(std::string what) : what_(std::move(what)) {}
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  std::string what_;
};

/// A queue of work on one device (a cudaStream_t; the emulator runs work at the call).
using Stream = struct StreamTag*;
/// A point in a stream (a cudaEvent_t).
using Event = struct EventTag*;

struct DeviceInfo {
  std::string name;
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
  int32_t num_sms = 0;
  int32_t compute_capability = 0;  // 90 for 9.0
};

/// Number of devices of this machine. An Error of kind unavailable says in one sentence why there
/// is none.
Result<int> count_devices();
DeviceInfo describe_device(int device);
/// Selects the device that later calls of this thread use.
void select_device(int device);

void* allocate_bytes(int64_t bytes);
void free_bytes(void* memory) noexcept;
/// Host memory that copies reach at full speed.
void* allocate_host_bytes(int64_t bytes);
void free_host_bytes(void* memory) noexcept;

void copy_to_device(void* to, const void* from, int64_t bytes, Stream stream);
void copy_to_host(void* to, const void* from, int64_t bytes, Stream stream);
void copy_on_device(void* to, const void* from, int64_t bytes, Stream stream);
/// Blocks of rows of bytes: rows are `pitch` bytes apart, blocks are a given number of rows apart.
struct ByteRows {
  const void* from = nullptr;
  int64_t from_pitch = 0;
  void* to = nullptr;
  int64_t to_pitch = 0;
  int64_t row_bytes = 0;
  int64_t num_rows = 0;  // of a block
  int64_t num_blocks = 1;
  int64_t from_block_rows = 0, to_block_rows = 0;
};
/// Copies the rows, on one device or to another one that it reaches. Between devices copy engines
/// do the copy; on one device it takes multiprocessors, and waits for a kernel that occupies them
/// all (both observed with driver 580 on H200).
void copy_byte_rows(const ByteRows& rows, Stream stream);
/// Lets the selected device write the memory of `peer`; false where no link connects the two.
bool reach_device(int peer);
/// True if work is done when the call that enqueues it returns. Then no work may be enqueued before
/// the work that it waits for.
bool works_at_once();

void fill_bytes(void* memory, uint8_t value, int64_t bytes, Stream stream);

/// Priority of a stream's kernels over those of other streams of the device.
enum class Urgency { late, usual, urgent };
Stream make_stream(Urgency urgency);
void destroy_stream(Stream stream) noexcept;
void wait_for_stream(Stream stream);
/// True if all work of the stream is done. Throws the error of failed work.
bool is_stream_done(Stream stream);

Event make_event(bool measures_time);
void destroy_event(Event event) noexcept;
void record_event(Event event, Stream stream);
/// True if all work before the recorded event is done. Throws the error of failed work.
bool is_event_done(Event event);
/// Later work of `stream` begins after `event`.
void wait_for_event(Stream stream, Event event);
/// Later work of `stream` begins when *flag, in memory of its device, is `value`. The wait occupies
/// no multiprocessor (CUDA Driver API, cuStreamWaitValue32).
void wait_for_flag(Stream stream, const int32_t* flag, int32_t value);
/// Milliseconds between two recorded events with timing.
double milliseconds_between(Event first, Event last);

/// Throws the error that the last launch left, if any; `what` names the launch.
void check_launch(const char* what);

}  // namespace cpscope::kernels
