#pragma once

#include "kernels/device/tensor_map.h"
#include "kernels/emulator/device_code_emulated.h"
#include "sim/run/fp8.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <source_location>
#include <type_traits>
#include <unordered_map>
#include <vector>

namespace cpscope::kernels::emulator {

/// A transaction barrier: its phase ends when no arrivals and no bytes are pending.
struct TransactionBarrier {
  int32_t arrivals = 0;  // per phase
  int32_t pending_arrivals = 0;
  int64_t pending_bytes = 0;
  uint32_t phase = 0;
  bool was_waited_for = true;  // the phase that ended last, if one did
  WaitList waiting;
};

struct NamedBarrier {
  int32_t threads = 0;  // 0 until a thread has arrived
  int32_t arrived = 0;
  int64_t generation = 0;
  uint32_t line = 0;  // of the thread that arrived last
  WaitList waiting;
};

/// A product of one thread, until it is executed.
struct Product {
  float* sums = nullptr;
  const uint32_t* a_registers = nullptr;  // null: a is in shared memory
  uint64_t a = 0, b = 0;                  // descriptors
  int32_t columns = 0;
  bool accumulates = true;
  bool b_is_transposed = false;
  bool is_bf16 = true;
  bool is_codes = false;  // then 32 numbers are summed, not 16
  Fp8Type a_type = Fp8Type::e4m3, b_type = Fp8Type::e4m3;

  bool is_same_instruction(const Product& other) const {
    return a == other.a && b == other.b && columns == other.columns &&
           accumulates == other.accumulates && b_is_transposed == other.b_is_transposed &&
           is_codes == other.is_codes && a_type == other.a_type && b_type == other.b_type &&
           (a_registers == nullptr) == (other.a_registers == nullptr);
  }
};

/// The products that a warpgroup has in flight.
struct Warpgroup {
  static constexpr int32_t kThreads = 128;
  using Group = std::vector<Product>;

  std::array<Group, kThreads> open;                 // [thread]
  std::array<std::vector<Group>, kThreads> groups;  // [thread], oldest first
  Meeting meeting;
};

/// Boxes of one thread that are being sent to global memory: first they are read, later written.
struct OutgoingBoxes {
  std::vector<std::shared_ptr<class OutgoingBox>> boxes;  // not yet waited for
  int64_t num_committed = 0;                              // of them
};

/// State that sm_90 adds to a CTA.
struct HopperState {
  std::unordered_map<uint32_t, TransactionBarrier> barriers;  // by address
  std::array<NamedBarrier, 16> named;
  std::vector<Warpgroup> warpgroups;
  int64_t free_registers = 0;  // per thread of a warpgroup, yielded and not claimed
  WaitList waiting_for_registers;
  std::unordered_map<int32_t, OutgoingBoxes> outgoing;  // by thread
  std::minstd_rand random;

  HopperState();
};

HopperState& hopper_state();
TransactionBarrier& barrier_at(uint32_t address, const Place& place);
/// Ends the barrier's phase if nothing is pending.
void end_phase_if_complete(TransactionBarrier& barrier);
void arrive_at(uint32_t address, uint32_t bytes, const Place& place);
void wait_for_phase(uint32_t address, uint32_t parity, const Place& place);
void arrive_at_named(int id, int threads, bool waits, const Place& place);
void start_box_copy(uint32_t to, const TensorMap& map, uint32_t barrier,
                    const std::array<int32_t, 5>& first, const Place& place);
void start_byte_copy(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier,
                     const Place& place);
void send_box(const TensorMap& map, uint32_t from, const std::array<int32_t, 5>& first, bool adds,
              const Place& place);
void commit_boxes();
/// Waits until they are read, or also written.
void wait_for_outgoing(bool are_written, const Place& place);
void wait_for_turn(const int32_t* taken, int32_t turn, const Place& place);
void store_matrices_x4(uint32_t address, const uint32_t* words, bool transposes,
                       const Place& place);
void change_registers(int registers, bool claims, const Place& place);
void start_product(const Product& product, const Place& place);
void commit_products(const Place& place);
/// Executes all groups of products except the `pending` youngest.
void wait_for_products(int pending, const Place& place);

}  // namespace cpscope::kernels::emulator

/// The names of kernels/device/hopper.h and kernels/hopper/hopper_products.h, executed on the CPU:
/// TMA box copies arrive at some later time, products are executed at some time up to their wait.
namespace cpscope::kernels::device {

struct alignas(8) FloatPair {
  float x, y;
};
struct alignas(8) IntPair {
  int32_t x, y;
};
struct alignas(16) FloatFour {
  float x, y, z, w;
};

using Line = std::source_location;

void mbarrier_init(uint32_t barrier, int arrivals, Line line = Line::current());
inline void mbarrier_init_fence() {}
inline void mbarrier_arrive_expecting(uint32_t barrier, uint32_t bytes,
                                      Line line = Line::current()) {
  emulator::arrive_at(barrier, bytes, {"mbarrier_arrive_expecting", barrier, line});
}
inline void mbarrier_arrive(uint32_t barrier, Line line = Line::current()) {
  emulator::arrive_at(barrier, 0, {"mbarrier_arrive", barrier, line});
}
inline void mbarrier_wait(uint32_t barrier, uint32_t parity, Line line = Line::current()) {
  emulator::wait_for_phase(barrier, parity, {"mbarrier_wait", barrier, line});
}

inline void named_barrier_sync(int id, int threads, Line line = Line::current()) {
  emulator::arrive_at_named(id, threads, true, {"named_barrier_sync", id, line});
}
inline void named_barrier_arrive(int id, int threads, Line line = Line::current()) {
  emulator::arrive_at_named(id, threads, false, {"named_barrier_arrive", id, line});
}

inline void prefetch_map(const TensorMap* /*map*/) {}
inline void prefetch_box(const TensorMap* /*map*/, int /*c0*/, int /*c1*/, int /*c2*/, int /*c3*/,
                         int /*c4*/) {}
inline void load_box(uint32_t to, const TensorMap* map, uint32_t barrier, int c0, int c1, int c2,
                     int c3, int c4, Line line = Line::current()) {
  emulator::start_box_copy(to, *map, barrier, {c0, c1, c2, c3, c4}, {"load_box", barrier, line});
}

inline void load_bytes(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier,
                       Line line = Line::current()) {
  emulator::start_byte_copy(to, from, bytes, barrier, {"load_bytes", barrier, line});
}

inline void publish_shared_writes() {}
inline void store_box(const TensorMap* map, uint32_t from, int c0, int c1, int c2, int c3, int c4,
                      Line line = Line::current()) {
  emulator::send_box(*map, from, {c0, c1, c2, c3, c4}, false, {"store_box", from, line});
}
inline void add_box(const TensorMap* map, uint32_t from, int c0, int c1, int c2, int c3, int c4,
                    Line line = Line::current()) {
  emulator::send_box(*map, from, {c0, c1, c2, c3, c4}, true, {"add_box", from, line});
}
inline void commit_boxes() { emulator::commit_boxes(); }
inline void wait_for_boxes_read(Line line = Line::current()) {
  emulator::wait_for_outgoing(false, {"wait_for_boxes_read", 0, line});
}
inline void wait_for_boxes(Line line = Line::current()) {
  emulator::wait_for_outgoing(true, {"wait_for_boxes", 0, line});
}
inline void wait_for_turn(const int32_t* taken, int32_t turn, Line line = Line::current()) {
  emulator::wait_for_turn(taken, turn, {"wait_for_turn", turn, line});
}
inline void wait_for_arrival(const int32_t* flag, int32_t expected, Line line = Line::current()) {
  emulator::wait_for_turn(flag, expected, {"wait_for_arrival", expected, line});
}
inline void pass_turn(int32_t* taken, int32_t turn) {
  emulator::current_cta().note_progress();
  *taken = turn;
}

template <int N>
void claim_registers(Line line = Line::current()) {
  emulator::change_registers(N, true, {"claim_registers", N, line});
}
template <int N>
void yield_registers(Line line = Line::current()) {
  emulator::change_registers(N, false, {"yield_registers", N, line});
}

inline int32_t max_of_three(int32_t a, int32_t b, int32_t c) { return std::max({a, b, c}); }

template <class Value>
Value& shared_value(uint32_t address, const emulator::Place& place) {
  return *reinterpret_cast<Value*>(
      emulator::current_cta().at(address, sizeof(Value), alignof(Value), place));
}

inline int32_t load_shared_int(uint32_t address, Line line = Line::current()) {
  return shared_value<int32_t>(address, {"load_shared_int", address, line});
}
inline void store_shared_int(uint32_t address, int32_t value, Line line = Line::current()) {
  shared_value<int32_t>(address, {"store_shared_int", address, line}) = value;
}
inline void store_shared_pair(uint32_t address, FloatPair value, Line line = Line::current()) {
  shared_value<FloatPair>(address, {"store_shared_pair", address, line}) = value;
}
inline void store_transposed_x4(uint32_t address, const uint32_t* words,
                                Line line = Line::current()) {
  emulator::store_matrices_x4(address, words, true, {"store_transposed_x4", address, line});
}
inline void store_matrices_x4(uint32_t address, const uint32_t* words,
                              Line line = Line::current()) {
  emulator::store_matrices_x4(address, words, false, {"store_matrices_x4", address, line});
}
inline void store_shared_four(uint32_t address, FloatFour value, Line line = Line::current()) {
  shared_value<FloatFour>(address, {"store_shared_four", address, line}) = value;
}
inline FloatFour load_shared_four(uint32_t address, Line line = Line::current()) {
  return shared_value<FloatFour>(address, {"load_shared_four", address, line});
}
inline FloatPair load_shared_pair(uint32_t address, Line line = Line::current()) {
  return shared_value<FloatPair>(address, {"load_shared_pair", address, line});
}
inline void store_shared_int_pair(uint32_t address, IntPair value, Line line = Line::current()) {
  shared_value<IntPair>(address, {"store_shared_int_pair", address, line}) = value;
}
inline IntPair load_shared_int_pair(uint32_t address, Line line = Line::current()) {
  return shared_value<IntPair>(address, {"load_shared_int_pair", address, line});
}

template <class Value, int N>
void pin(Value (&/*values*/)[N]) {}
inline void wgmma_fence() {}
inline void wgmma_commit(Line line = Line::current()) {
  emulator::commit_products({"wgmma_commit", 0, line});
}
template <int N>
void wgmma_wait(Line line = Line::current()) {
  emulator::wait_for_products(N, {"wgmma_wait", N, line});
}

uint64_t matrix_descriptor(uint32_t address, uint32_t panel_bytes, Line line = Line::current());
uint64_t plain_descriptor(uint32_t address, Line line = Line::current());
inline uint64_t further(uint64_t descriptor, uint32_t bytes) { return descriptor + bytes / 16; }

template <class T, int N>
void wgmma_ss(float (&d)[N], uint64_t a, uint64_t b, int accumulate, Line line = Line::current()) {
  // Before the products are done, the sums hold no usable data.
  if (accumulate == 0) {
    for (float& sum : d) sum = std::numeric_limits<float>::quiet_NaN();
  }
  emulator::start_product(
      {d, nullptr, a, b, 2 * N, accumulate != 0, false, std::is_same_v<T, Bf16>},
      {"wgmma_ss", 0, line});
}
template <class T, int N>
void wgmma_ss_rows(float (&d)[N], uint64_t a, uint64_t b, int accumulate,
                   Line line = Line::current()) {
  if (accumulate == 0) {
    for (float& sum : d) sum = std::numeric_limits<float>::quiet_NaN();
  }
  emulator::start_product({d, nullptr, a, b, 2 * N, accumulate != 0, true, std::is_same_v<T, Bf16>},
                          {"wgmma_ss_rows", 0, line});
}
template <class T, int N>
void wgmma_rs(float (&d)[N], const uint32_t* a, uint64_t b, Line line = Line::current()) {
  emulator::start_product({d, a, 0, b, 2 * N, true, true, std::is_same_v<T, Bf16>},
                          {"wgmma_rs", 0, line});
}
template <Fp8Type kA = Fp8Type::e4m3, Fp8Type kB = Fp8Type::e4m3, int N>
void wgmma_ss_codes(float (&d)[N], uint64_t a, uint64_t b, int accumulate,
                    Line line = Line::current()) {
  if (accumulate == 0) {
    for (float& sum : d) sum = std::numeric_limits<float>::quiet_NaN();
  }
  emulator::start_product({d, nullptr, a, b, 2 * N, accumulate != 0, false, false, true, kA, kB},
                          {"wgmma_ss_codes", 0, line});
}
template <Fp8Type kA = Fp8Type::e4m3, Fp8Type kB = Fp8Type::e4m3, int N>
void wgmma_rs_codes(float (&d)[N], const uint32_t* a, uint64_t b, int accumulate,
                    Line line = Line::current()) {
  if (accumulate == 0) {
    for (float& sum : d) sum = std::numeric_limits<float>::quiet_NaN();
  }
  emulator::start_product({d, a, 0, b, 2 * N, accumulate != 0, false, false, true, kA, kB},
                          {"wgmma_rs_codes", 0, line});
}
template <class T>
void wgmma_rs_lanes(float (&d)[32], const uint32_t* a, uint64_t b, Line line = Line::current()) {
  emulator::start_product({d, a, 0, b, 64, true, false, std::is_same_v<T, Bf16>},
                          {"wgmma_rs_lanes", 0, line});
}
inline void wgmma_rs_first(float (&d)[32], const uint32_t* a, uint64_t b,
                           Line line = Line::current()) {
  for (float& sum : d) sum = std::numeric_limits<float>::quiet_NaN();
  emulator::start_product({d, a, 0, b, 64, false, false, true}, {"wgmma_rs_first", 0, line});
}

}  // namespace cpscope::kernels::device
