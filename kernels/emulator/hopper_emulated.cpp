#include "kernels/emulator/hopper_emulated.h"

#include "kernels/device/device.h"
#include "kernels/emulator/hopper_products_emulated.h"
#include "kernels/emulator/lent_memory.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

// The emulation follows PTX ISA 9.0: the 128-byte swizzle, the matrix descriptors and fragments of
// wgmma, the phases of mbarrier. It does not model fences between the generic and the asynchronous
// proxy, the memory order of a real device, or the scheduling of products by ptxas.

namespace cpscope::kernels::emulator {
namespace {

constexpr int32_t kGroupBytes = 8 * kBoxRowBytes;  // distance between groups of 8 rows
constexpr uint32_t kEarlyOdds = 4;  // one in this many groups of products is executed at its commit

Warpgroup& own_warpgroup() {
  return hopper_state()
      .warpgroups[static_cast<size_t>(current_cta().thread() / Warpgroup::kThreads)];
}

int32_t own_member() { return current_cta().thread() % Warpgroup::kThreads; }

/// A row map as the emulator stores it in TensorMap::words.
struct EmulatedMap {
  uint64_t data = 0;
  uint64_t sizes[5] = {};
  uint64_t strides[4] = {};  // bytes, of dimensions 1..4
  int32_t box_rows = 0;      // of all heads
  RowBox box;
  int32_t element_bytes = 2;

  int32_t box_lanes() const { return kBoxRowBytes / element_bytes; }
};
static_assert(sizeof(EmulatedMap) <= sizeof(TensorMap));

/// The elements of one row of a box that are inside the map's bounds.
struct BoxRow {
  std::byte* at = nullptr;
  int32_t num_lanes = 0;
};

BoxRow find_row(const EmulatedMap& map, const std::array<int32_t, 5>& first, int32_t row,
                bool clips) {
  uint64_t address = map.data + static_cast<uint64_t>(first[0]) * map.element_bytes;
  const bool has_heads = map.box.heads > 0;
  const int32_t row_dimension = has_heads ? 2 : 1;
  const int32_t inner = has_heads ? map.box.heads : map.box.rows;
  const std::array<int32_t, 5> steps{0, row % inner, row / inner, 0, 0};
  for (int i = 1; i < 5; ++i) {
    const auto at = static_cast<uint64_t>(int64_t{first[i]} + steps[i]);
    if (at >= map.sizes[i] && (i != row_dimension || clips)) return {};
    address += at * map.strides[i - 1];  // wraps around as TMA's address does
  }
  const int64_t lanes = static_cast<int64_t>(map.sizes[0]) - first[0];
  return {reinterpret_cast<std::byte*>(address),
          static_cast<int32_t>(std::clamp<int64_t>(lanes, 0, map.box_lanes()))};
}

/// Completes one box and signals its barrier.
void land_box(const EmulatedMap& map, uint32_t to, const std::array<int32_t, 5>& first,
              uint32_t barrier, bool swizzles, bool clips, const Place& place) {
  Cta& cta = current_cta();
  uint32_t bytes = 0;
  for (int32_t row = 0; row < map.box_rows; ++row) {
    const BoxRow source = find_row(map, first, row, clips);
    const int32_t there = source.num_lanes * map.element_bytes;
    if (there > 0 && !is_lent(source.at, there))
      cta.fail("a box reads outside device memory", place);
    for (int32_t byte = 0; byte < kBoxRowBytes; byte += 2, bytes += 2) {
      uint16_t value = 0;
      if (byte < there) std::memcpy(&value, source.at + byte, sizeof(value));
      const uint32_t target = swizzles ? swizzle(to + bytes) : to + bytes;
      std::memcpy(cta.at(target, 2, 2, place), &value, sizeof(value));
    }
  }
  TransactionBarrier& full = barrier_at(barrier, place);
  full.pending_bytes -= bytes;
  end_phase_if_complete(full);
  ++counts().copies;
}

}  // namespace

/// A box from shared to global memory.
class OutgoingBox {
 public:
  OutgoingBox(const EmulatedMap& map, uint32_t from, const std::array<int32_t, 5>& first, bool adds,
              const Place& place)
      : map_(map), from_(from), first_(first), adds_(adds), place_(place) {}

  bool is_read() const { return is_read_; }
  bool is_written() const { return is_written_; }

  void read() {
    if (is_read_) return;
    is_read_ = true;
    Cta& cta = current_cta();
    bytes_.resize(static_cast<size_t>(map_.box_rows * kBoxRowBytes));
    for (size_t i = 0; i < bytes_.size(); i += 16)
      std::memcpy(&bytes_[i], cta.at(swizzle(from_ + static_cast<uint32_t>(i)), 16, 16, place_),
                  16);
  }

  void write() {
    if (is_written_) return;
    is_written_ = true;
    read();
    for (int32_t row = 0; row < map_.box_rows; ++row) {
      const BoxRow target = find_row(map_, first_, row, true);
      const int32_t num_bytes = target.num_lanes * map_.element_bytes;
      if (num_bytes > 0 && !is_lent(target.at, num_bytes))
        current_cta().fail("a box writes outside device memory", place_);
      const std::byte* const from = &bytes_[static_cast<size_t>(row * kBoxRowBytes)];
      if (adds_) {
        for (int32_t byte = 0; byte < num_bytes; byte += 4) add(from + byte, target.at + byte);
      } else if (num_bytes > 0) {
        std::memcpy(target.at, from, static_cast<size_t>(num_bytes));
      }
    }
    ++counts().copies;
  }

 private:
  static void add(const std::byte* from, std::byte* to) {
    float value, sum;
    std::memcpy(&value, from, sizeof(value));
    std::memcpy(&sum, to, sizeof(sum));
    sum += value;
    std::memcpy(to, &sum, sizeof(sum));
  }

  EmulatedMap map_;
  uint32_t from_;
  std::array<int32_t, 5> first_;
  bool adds_;
  Place place_;
  bool is_read_ = false, is_written_ = false;
  std::vector<std::byte> bytes_;
};

namespace {

/// Executes the oldest group of a warpgroup's products, or discards it.
void finish_oldest(Warpgroup& group, bool executes, const Place& place) {
  for (size_t i = 0; executes && i < group.groups[0].front().size(); ++i)
    execute_product(group, i, place);
  for (std::vector<Warpgroup::Group>& of_thread : group.groups) of_thread.erase(of_thread.begin());
}

}  // namespace

HopperState::HopperState()
    : warpgroups(static_cast<size_t>(current_cta().num_threads() / Warpgroup::kThreads)),
      random(static_cast<uint32_t>(settings().seed % 2147483646) + 1) {}

HopperState& hopper_state() { return current_cta().extension<HopperState>(); }

TransactionBarrier& barrier_at(uint32_t address, const Place& place) {
  const auto found = hopper_state().barriers.find(address);
  if (found == hopper_state().barriers.end())
    current_cta().fail("there is no transaction barrier", place);
  return found->second;
}

void end_phase_if_complete(TransactionBarrier& barrier) {
  if (barrier.pending_arrivals > 0 || barrier.pending_bytes != 0) return;
  barrier.phase ^= 1;
  barrier.was_waited_for = false;
  barrier.pending_arrivals = barrier.arrivals;
  current_cta().wake(barrier.waiting);
}

void arrive_at(uint32_t address, uint32_t bytes, const Place& place) {
  TransactionBarrier& barrier = barrier_at(address, place);
  if (barrier.pending_arrivals == 0) current_cta().fail("more arrivals than the phase has", place);
  // compute-sanitizer's synccheck reports this too.
  if (!barrier.was_waited_for) current_cta().fail("no thread waited for the phase before", place);
  barrier.pending_bytes += bytes;
  --barrier.pending_arrivals;
  end_phase_if_complete(barrier);
}

void wait_for_phase(uint32_t address, uint32_t parity, const Place& place) {
  Cta& cta = current_cta();
  TransactionBarrier& barrier = barrier_at(address, place);
  if (cta.has_fault(Fault::skip_transaction_wait, place)) {
    // A thread that never waits must not prevent the others from running.
    constexpr uint32_t kSkipsBetween = 64;
    if (hopper_state().random() % kSkipsBetween == 0) {
      cta.note_progress();
      cta.poll(place);
    }
    barrier.was_waited_for = true;  // else the rule would find every skipped wait
    return;
  }
  while (barrier.phase == parity) cta.sleep(barrier.waiting, place);
  barrier.was_waited_for = true;
}

void arrive_at_named(int id, int threads, bool waits, const Place& place) {
  Cta& cta = current_cta();
  if (id < 1 || id > 15 || threads % 32 != 0) cta.fail("no such named barrier", place);
  NamedBarrier& barrier = hopper_state().named[static_cast<size_t>(id)];
  if (barrier.arrived > 0 && barrier.threads != threads)
    cta.fail("a named barrier counts different threads", place);
  // compute-sanitizer's synccheck refuses this.
  if (barrier.arrived > 0 && threads == cta.num_threads() && barrier.line != place.line.line())
    cta.fail("all threads meet at a named barrier from different places", place);
  barrier.line = place.line.line();
  barrier.threads = threads;
  if (waits && cta.has_fault(Fault::skip_named_barrier, place)) waits = false;
  const int64_t generation = barrier.generation;
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    ++barrier.generation;
    cta.wake(barrier.waiting);
  }
  while (waits && barrier.generation == generation) cta.sleep(barrier.waiting, place);
}

void start_box_copy(uint32_t to, const TensorMap& map, uint32_t barrier,
                    const std::array<int32_t, 5>& first, const Place& place) {
  Cta& cta = current_cta();
  EmulatedMap emulated;
  std::memcpy(&emulated, map.words, sizeof(emulated));
  // TMA reads only from multiples of 16 bytes, whatever the map's strides are; else it ends the
  // kernel.
  if (static_cast<int64_t>(first[0]) * emulated.element_bytes % 16 != 0)
    cta.fail("a box does not begin on 16 bytes of its row", place);
  // The swizzle repeats every 1024 bytes, so a tile must begin there.
  const auto bytes = emulated.box_rows * kBoxRowBytes;
  std::byte* target = cta.at(to, bytes, kGroupBytes, place);
  std::fill(target, target + bytes, std::byte{0xff});  // NaN until the data has arrived
  const bool swizzles = !cta.has_fault(Fault::skip_swizzle, place);
  const bool clips = !cta.has_fault(Fault::skip_clipping, place);
  cta.post([=] { land_box(emulated, to, first, barrier, swizzles, clips, place); });
}

void start_byte_copy(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier,
                     const Place& place) {
  Cta& cta = current_cta();
  if (bytes == 0 || bytes % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0)
    cta.fail("a copy not of whole 16 bytes", place);
  std::byte* target = cta.at(to, static_cast<int32_t>(bytes), 16, place);
  std::fill(target, target + bytes, std::byte{0xff});  // NaN until the data has arrived
  cta.post([=] {
    if (!is_lent(from, bytes)) current_cta().fail("a copy reads outside device memory", place);
    std::memcpy(target, from, bytes);
    TransactionBarrier& full = barrier_at(barrier, place);
    full.pending_bytes -= bytes;
    end_phase_if_complete(full);
    ++counts().copies;
  });
}

void send_box(const TensorMap& map, uint32_t from, const std::array<int32_t, 5>& first, bool adds,
              const Place& place) {
  Cta& cta = current_cta();
  EmulatedMap emulated;
  std::memcpy(&emulated, map.words, sizeof(emulated));
  if (adds && emulated.element_bytes != 4) cta.fail("only fp32 boxes are added", place);
  cta.at(from, emulated.box_rows * kBoxRowBytes, kGroupBytes, place);
  const auto box = std::make_shared<OutgoingBox>(emulated, from, first, adds, place);
  hopper_state().outgoing[cta.thread()].boxes.push_back(box);
  cta.post([box] { box->read(); });
  cta.post([box] { box->write(); });
}

void commit_boxes() {
  OutgoingBoxes& of_thread = hopper_state().outgoing[current_cta().thread()];
  of_thread.num_committed = static_cast<int64_t>(of_thread.boxes.size());
}

void wait_for_outgoing(bool are_written, const Place& place) {
  Cta& cta = current_cta();
  if (cta.has_fault(Fault::skip_box_wait, place)) return;
  OutgoingBoxes& of_thread = hopper_state().outgoing[cta.thread()];
  const auto is_pending = [&](const std::shared_ptr<OutgoingBox>& box) {
    return are_written ? !box->is_written() : !box->is_read();
  };
  while (std::any_of(of_thread.boxes.begin(), of_thread.boxes.begin() + of_thread.num_committed,
                     is_pending)) {
    cta.note_progress();
    cta.poll(place);
  }
  if (!are_written) return;
  of_thread.boxes.erase(of_thread.boxes.begin(), of_thread.boxes.begin() + of_thread.num_committed);
  of_thread.num_committed = 0;
}

void wait_for_turn(const int32_t* taken, int32_t turn, const Place& place) {
  while (*taken != turn) current_cta().poll(place);
}

void store_matrices_x4(uint32_t address, const uint32_t* words, bool transposes,
                       const Place& place) {
  struct Argument {
    uint32_t address;
    const uint32_t* words;
  } argument{address, words};
  meet_in_warp(argument, place, [&](Argument* const* lanes) {
    for (int32_t matrix = 0; matrix < 4; ++matrix) {
      for (int32_t row = 0; row < 8; ++row) {
        for (int32_t column = 0; column < 8; ++column) {
          const uint32_t pair = lanes[4 * row + column / 2]->words[matrix];
          const auto bits = static_cast<uint16_t>(pair >> (column % 2 * 16));
          const uint32_t to = lanes[8 * matrix + (transposes ? column : row)]->address;
          std::memcpy(current_cta().at(to, 16, 16, place) + 2 * (transposes ? row : column), &bits,
                      sizeof(bits));
        }
      }
    }
  });
}

void change_registers(int registers, bool claims, const Place& place) {
  Cta& cta = current_cta();
  const int32_t at_launch = cta.num_registers();
  if (registers % 8 != 0 || registers < 24 || registers > 256 ||
      (claims ? registers < at_launch : registers > at_launch)) {
    cta.fail("no such number of registers", place);
  }
  // One thread acts for its warpgroup.
  if (own_member() != 0) return;
  HopperState& state = hopper_state();
  if (claims) {
    while (state.free_registers < registers - at_launch)
      cta.sleep(state.waiting_for_registers, place);
  }
  state.free_registers += at_launch - registers;
  cta.wake(state.waiting_for_registers);
}

void start_product(const Product& product, const Place& /*place*/) {
  own_warpgroup().open[static_cast<size_t>(own_member())].push_back(product);
}

void commit_products(const Place& place) {
  Warpgroup& group = own_warpgroup();
  const auto member = static_cast<size_t>(own_member());
  group.groups[member].push_back(std::move(group.open[member]));
  group.open[member].clear();
  const size_t count = group.groups[member].size();
  const bool is_last =
      std::all_of(group.groups.begin(), group.groups.end(),
                  [&](const auto& of_thread) { return of_thread.size() == count; });
  // Hardware may execute products immediately, or only at the wait.
  if (is_last && hopper_state().random() % kEarlyOdds == 0) {
    while (!group.groups[0].empty()) finish_oldest(group, true, place);
  }
}

void wait_for_products(int pending, const Place& place) {
  Cta& cta = current_cta();
  Warpgroup& group = own_warpgroup();
  int nothing = 0;
  cta.meet(group.meeting, Warpgroup::kThreads, own_member(), nothing, place, [&](int* const*) {
    const bool executes = !cta.has_fault(Fault::skip_product_wait, place);
    while (group.groups[0].size() > static_cast<size_t>(pending))
      finish_oldest(group, executes, place);
  });
}

}  // namespace cpscope::kernels::emulator

namespace cpscope::kernels::device {

void mbarrier_init(uint32_t barrier, int arrivals, Line line) {
  const emulator::Place place{"mbarrier_init", barrier, line};
  emulator::current_cta().at(barrier, 8, 8, place);
  emulator::TransactionBarrier& made = emulator::hopper_state().barriers[barrier];
  made.arrivals = made.pending_arrivals = arrivals;
}

uint64_t matrix_descriptor(uint32_t address, uint32_t panel_bytes, Line line) {
  const emulator::Place place{"matrix_descriptor", address, line};
  emulator::Cta& cta = emulator::current_cta();
  if (address % 16 != 0 || address >= 0x40000) cta.fail("no address for a descriptor", place);
  if (cta.has_fault(emulator::Fault::wrong_panel_stride, place)) panel_bytes += 1024;
  return uint64_t{(address & 0x3FFFF) >> 4} | uint64_t{(panel_bytes & 0x3FFFF) >> 4} << 16 |
         uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

uint64_t plain_descriptor(uint32_t address, Line line) {
  if (address % 16 != 0 || address >= 0x40000) {
    emulator::current_cta().fail("no address for a descriptor",
                                 {"plain_descriptor", address, line});
  }
  return uint64_t{address >> 4} | uint64_t{128 >> 4} << 32;
}

}  // namespace cpscope::kernels::device

namespace cpscope::kernels {

void make_row_map(TensorMap& result, const DeviceRows& rows, Dtype dtype, int32_t num_heads,
                  int32_t num_lanes, RowBox box) {
  result = {};
  if (rows.data == nullptr) return;
  const RowMapGeometry geometry = describe_row_map(rows, dtype, num_heads, num_lanes, box);
  emulator::EmulatedMap map;
  map.data = reinterpret_cast<uintptr_t>(rows.data);
  std::copy(std::begin(geometry.sizes), std::end(geometry.sizes), map.sizes);
  std::copy(std::begin(geometry.strides), std::end(geometry.strides), map.strides);
  map.box_rows = box.rows * std::max(1, box.heads) * box.heads_in_turn;
  map.box = box;
  map.element_bytes = dtype == Dtype::fp32 ? 4 : 2;
  std::memcpy(result.words, &map, sizeof(map));
}

}  // namespace cpscope::kernels
