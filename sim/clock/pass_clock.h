#pragma once

#include "sim/clock/clock.h"
#include "sim/clock/tile_work.h"

#include <cstdint>
#include <utility>
#include <vector>

namespace cpscope {

inline constexpr int64_t kNoEvent = -1;

/// A moment, and the event that ends at it.
struct ClockTime {
  double us = 0;
  int64_t event = kNoEvent;

  void raise(const ClockTime& other) {
    if (other.us > us) *this = other;
  }
};

struct BusyTime {
  double begin = 0, end = 0;
};

/// Bytes and peers of one rank in one direction in one stage.
struct RankTraffic {
  double inside = 0, between = 0;  // bytes
  int32_t inside_peers = 0, between_peers = 0;
};

/// State of one rank in one stage of transfers.
struct RankExchange {
  RankTraffic out, in;
  int64_t num_sent = 0, num_received = 0;
  double wire_us = 0;
  ClockTime ready;  // end of packing
  double begin_us = 0;
  ClockTime end;
  bool is_touched = false;
};

/// One rank's streams and their busy times.
struct RankLane {
  ClockTime host, compute, transfer;
  std::vector<BusyTime> computes, locals, transfers;  // ascending
  std::vector<BusyTime> beside;  // transfers that slow computes, as far as known
  size_t next_beside = 0;        // first one that may overlap a later compute
};

/// Length of the part of `stretches` that `covered` does not cover. Both ascend by begin; `covered`
/// is disjoint.
double uncovered_us(const std::vector<BusyTime>& stretches, const std::vector<BusyTime>& covered);

/// The same stretches in order, with adjacent ones joined.
std::vector<BusyTime> joined(std::vector<BusyTime> stretches);

double length_of(const std::vector<BusyTime>& stretches);

/// One pass of a plan, item by item in plan order.
class PassClock {
 public:
  PassClock(const Plan& plan, const Pass& pass, const Cluster& cluster, const Stack& stack,
            const TileCost& tiles, bool is_backward, double offset_us, Timeline& timeline,
            bool keeps_events)
      : plan_(plan),
        pass_(pass),
        cluster_(cluster),
        stack_(stack),
        is_backward_(is_backward),
        offset_us_(offset_us),
        timeline_(timeline),
        keeps_events_(keeps_events),
        tiles_(tiles),
        counter_(tiles),
        lanes_(plan.home.size()),
        written_(plan.buffers.size()),
        read_(plan.buffers.size()),
        exchanges_(plan.home.size()) {}

  PassTimeline run();

 private:
  using Lane = RankLane;

  void run_stage(const Stage& stage);
  void compute(int64_t index);
  void reorder(int64_t index);
  void merge(int64_t index);
  void finish(int64_t index);
  void transfer(const Stage& stage);
  void gather_traffic(const Stage& stage);
  void price_wires();
  void move_inside(int64_t index);
  void pack(const Stage& stage);
  void land();

  double copy_us(double bytes) const { return bytes / cluster_.device.copy_gb_s * 1e-3; }
  double wire_us(const RankTraffic& traffic, double nic_bytes) const;
  double bytes_of(const BufferSpec& spec) const {
    return static_cast<double>(buffer_bytes(spec, plan_.scenario));
  }
  double bytes_of(BufferId id) const { return bytes_of(plan_.buffer(id)); }
  int64_t nic_of(int32_t rank) const {
    return int64_t{rank / cluster_.gpus_per_node} * cluster_.nics_per_node +
           rank % cluster_.gpus_per_node % cluster_.nics_per_node;
  }
  Lane& lane(RankId rank) { return lanes_[static_cast<size_t>(to_index(rank))]; }
  ClockTime& transfer_stream(Lane& lane) { return stack_.overlaps ? lane.transfer : lane.compute; }
  ClockTime& written(BufferId id) { return written_[static_cast<size_t>(to_index(id))]; }
  ClockTime& read(BufferId id) { return read_[static_cast<size_t>(to_index(id))]; }
  void wait_to_read(BufferId id, ClockTime& start) {
    if (id != kNoBuffer) start.raise(written(id));
  }
  void wait_to_write(BufferId id, ClockTime& start) {
    if (id == kNoBuffer) return;
    start.raise(written(id));
    start.raise(read(id));
  }
  void mark_read(BufferId id, const ClockTime& end) {
    if (id != kNoBuffer) read(id).raise(end);
  }
  void mark_written(BufferId id, const ClockTime& end) {
    if (id != kNoBuffer) written(id) = end;
  }
  void find_slow_downs();
  double tiles_us(int64_t index);
  double calls_us() const;
  double merges_us(const ComputeItem& item) const;
  double beside_transfers(Lane& lane, double start, double work_us) const;
  void begin(std::vector<Lane> before);
  ClockTime end() const;
  /// Records the event; returns the moment of its end.
  ClockTime enter(StageKind kind, int64_t index, RankId rank, StepId step, const ClockTime& start,
                  double end_us);
  ClockTime begin_on_compute(Lane& lane);
  double item_us() const { return is_backward_ ? stack_.backward_item_us : stack_.item_us; }
  template <class Item>
  void local(StageKind kind, int64_t index, const Item& item, BufferId reads, BufferId writes,
             double us);
  RankTimes times_of(const Lane& lane, double total_us) const;
  CriticalPath find_critical_path(const ClockTime& last, double total_us) const;

  const Plan& plan_;
  const Pass& pass_;
  const Cluster& cluster_;
  const Stack& stack_;
  const bool is_backward_;
  const double offset_us_;
  Timeline& timeline_;
  const bool keeps_events_;
  const TileCost& tiles_;
  TileCounter counter_;
  std::vector<double> tiles_us_;   // [compute item] cache for all rounds; empty for one round
  std::vector<Lane> lanes_;        // [rank]
  std::vector<double> slow_down_;  // [rank] factor on kernel time from lower clocks; at least 1
  std::vector<ClockTime> written_, read_;          // [BufferId] last write and last read
  std::vector<RankExchange> exchanges_;            // [rank] of the present stage
  std::vector<int32_t> touched_;                   // ranks in that stage
  std::vector<std::pair<int64_t, int64_t>> sent_;  // its items and their events
  std::vector<int64_t> before_;  // [event of this pass] the event that it waited for
  int64_t first_event_ = 0;
};

}  // namespace cpscope
