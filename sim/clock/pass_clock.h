#pragma once

#include "sim/base/id_vector.h"
#include "sim/base/ids.h"
#include "sim/clock/clock.h"
#include "sim/clock/tile_work.h"
#include "sim/plan/item_uses.h"
#include "sim/plan/round_steps.h"

#include <cstdint>
#include <limits>
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
  double enqueued = 0;  // by the host; at most `begin`
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
  double enqueued_us = 0;  // by the host
  ClockTime ready;         // end of packing
  double begin_us = 0;
  double wire_begin_us = std::numeric_limits<double>::infinity();  // of the first message
  ClockTime end;
  bool is_touched = false;
};

/// One rank's streams and their busy times.
struct RankLane {
  ClockTime host, compute, transfer;
  ClockTime outer;  // hops between nodes of a double ring, which have a stream of their own
  std::vector<BusyTime> computes, locals, transfers;  // ascending
  std::vector<BusyTime> outer_transfers;              // of that stream, ascending
  std::vector<BusyTime> partner_waits;                // parts of transfers
  double launch_us = 0;                               // of computes
  double groups_us = 0;                               // waiting for other groups of a round
  std::vector<BusyTime> beside;  // transfers that slow computes, as far as known
  size_t next_beside = 0;        // first one that may overlap a later compute
};

/// Length of the part of `stretches` that `covered` does not cover. Both ascend by begin; `covered`
/// is disjoint.
double uncovered_us(const std::vector<BusyTime>& stretches, const std::vector<BusyTime>& covered);

/// The same stretches in order, with adjacent ones joined; each keeps `enqueued` of its first.
std::vector<BusyTime> joined(std::vector<BusyTime> stretches);

double length_of(const std::vector<BusyTime>& stretches);

/// All of a compute item that its time on an idle device depends on.
struct PricedWork {
  int64_t first_slice = -1, num_slices = 0;
  int64_t q_rows = 0, kv_rows = 0;
  int32_t heads = 0, kv_heads = 0;

  friend bool operator==(const PricedWork&, const PricedWork&) = default;
};

/// One pass of a plan, item by item in plan order.
class PassClock {
 public:
  PassClock(const Plan& plan, Direction direction, const Cluster& cluster, const Stack& stack,
            const KernelCost& kernel, double offset_us, Timeline& timeline, bool keeps_events)
      : plan_(plan),
        pass_(plan.pass(direction)),
        cluster_(cluster),
        stack_(stack),
        direction_(direction),
        offset_us_(offset_us),
        timeline_(timeline),
        keeps_events_(keeps_events),
        kernel_(kernel),
        tiles_(direction == Direction::backward ? kernel.backward : kernel.forward),
        counter_(tiles_),
        lanes_(plan.home.size()),
        written_(plan.buffers.size()),
        read_(plan.buffers.size()),
        first_piece_us_(plan.buffers.size()),
        exchanges_(plan.home.size()),
        rounds_(rounds_of_steps(plan, direction)) {}

  PassTimeline run();

 private:
  using Lane = RankLane;

  void run_stage(const Stage& stage);
  void wait_for_round(const Stage& before, const Stage& stage);
  void end_round(StepId last_step);
  void run_item(int64_t index, const TransferItem& item);  // only if its rows stay on their rank
  void run_item(int64_t index, const ReorderItem& item);
  void run_item(int64_t index, const ComputeItem& item);
  void run_item(int64_t index, const MergeItem& item);
  void run_item(int64_t index, const FinishItem& item);
  void run_transfers(const Stage& stage);
  void gather_traffic(const Stage& stage);
  void price_wires();
  void pack(const Stage& stage);
  void land();

  double copy_us(double bytes) const { return bytes / cluster_.device.copy_gb_s * 1e-3; }
  double wire_us(const RankTraffic& traffic, double nic_bytes) const;
  double bytes_of(const BufferSpec& spec) const {
    return static_cast<double>(buffer_bytes(spec, plan_.scenario));
  }
  double bytes_of(BufferId id) const { return bytes_of(plan_.buffer(id)); }
  int64_t nic_of(RankId rank) const {
    const int32_t gpu = to_index(rank);
    return int64_t{gpu / cluster_.gpus_per_node} * cluster_.nics_per_node +
           gpu % cluster_.gpus_per_node % cluster_.nics_per_node;
  }
  ClockTime& transfer_stream(Lane& lane) {
    if (!stack_.overlaps) return lane.compute;
    return is_outer_ ? lane.outer : lane.transfer;
  }
  std::vector<BusyTime>& busy_transfers(Lane& lane) {
    return is_outer_ ? lane.outer_transfers : lane.transfers;
  }
  static std::vector<BusyTime> all_transfers(const Lane& lane);
  bool has_outer_stream(const Stage& stage) const;
  void wait_to_read(BufferId id, ClockTime& start) const { start.raise(written_[id]); }
  void wait_to_write(BufferId id, ClockTime& start) const {
    start.raise(written_[id]);
    start.raise(read_[id]);
  }
  /// Delays `start` until the item may use its buffers.
  template <class Item>
  void wait_for_buffers(const Item& item, ClockTime& start) const {
    visit_reads(item, [&](BufferId id) { wait_to_read(id, start); });
    visit_writes(item, [&](BufferId id) { wait_to_write(id, start); });
  }
  template <class Item>
  void mark_buffers(const Item& item, const ClockTime& end) {
    visit_reads(item, [&](BufferId id) { read_[id].raise(end); });
    visit_writes(item, [&](BufferId id) { written_[id] = end; });
  }
  void find_cuts();
  /// The share of a compute item's heads in the first and in the last piece of its inputs.
  double piece_share(const ComputeItem& item) const;
  /// The share of heads whose results are sent after the compute of a rank; 1: of all.
  double late_share(RankId rank) const;
  bool is_result_stage(const Stage& stage) const;
  void send_early_results();
  bool is_fused(const MergeItem& item) const;
  /// The rows of an item that launches nothing are there when it may use its buffers.
  template <class Item>
  void pass_on(const Item& item) {
    ClockTime end;
    wait_for_buffers(item, end);
    mark_buffers(item, end);
  }
  void find_slow_downs();
  double read_us(const ComputeItem& item) const;
  double packed_us(const ComputeItem& item, std::span<const BandSlice> slices) const;
  double expansion_us(const ComputeItem& item) const;
  double tiles_us(int64_t index);
  double count_tiles_us(const ComputeItem& item);
  double calls_us() const;
  double merges_us(const ComputeItem& item) const;
  double beside_transfers(Lane& lane, double start, double work_us) const;
  void begin(IdVector<RankId, Lane> before);
  ClockTime end() const;
  /// Records the event; returns the moment of its end.
  ClockTime enter(StageKind kind, int64_t index, RankId rank, StepId step, const ClockTime& start,
                  double end_us);
  ClockTime begin_on_compute(Lane& lane);
  double item_us() const {
    return direction_ == Direction::backward ? stack_.backward_item_us : stack_.item_us;
  }
  template <class Item>
  void local(StageKind kind, int64_t index, const Item& item, double us);
  static double host_gaps_us(std::vector<BusyTime> busy, const std::vector<BusyTime>& transfers);
  RankTimes times_of(const Lane& lane, double total_us) const;
  CriticalPath find_critical_path(const ClockTime& last, double total_us) const;

  const Plan& plan_;
  const Pass& pass_;
  const Cluster& cluster_;
  const Stack& stack_;
  const Direction direction_;
  const double offset_us_;
  Timeline& timeline_;
  const bool keeps_events_;
  const KernelCost& kernel_;
  const TileCost& tiles_;
  TileCounter counter_;
  std::vector<double> tiles_us_;  // [compute item] cache for all rounds; empty for one round
  PricedWork last_work_;          // of the item that was priced last
  double last_work_us_ = 0;
  IdVector<RankId, Lane> lanes_;
  IdVector<RankId, int64_t>
      once_;  // the only compute of each rank, -1: none; empty: nothing is cut
  bool cuts_inputs_ = false;
  IdVector<RankId, double> slow_down_;  // factor on kernel time from lower clocks; at least 1
  IdVector<BufferId, ClockTime> written_, read_;   // last write and last read
  IdVector<BufferId, double> first_piece_us_;      // end of the first piece of its rows
  bool is_outer_ = false;                          // the present stage is on the outer stream
  IdVector<RankId, RankExchange> exchanges_;       // of the present stage
  std::vector<RankId> touched_;                    // ranks in that stage
  std::vector<std::pair<int64_t, int64_t>> sent_;  // its items and their events
  std::vector<int64_t> before_;  // [event of this pass] the event that it waited for
  int64_t first_event_ = 0;
  std::vector<int32_t> rounds_;  // [step] of cp_sizes; empty without
  double round_begin_us_ = 0;    // of the present round
};

}  // namespace cpscope
